"""Lifetimes: the first and last line of each value of a program, and the live bytes at each line."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from switchgear_core.ir.aliasing import storages
from switchgear_core.ir.symbol import proxies
from switchgear_core.ir.trace import Trace


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The memory of a value: `birth` is the line that creates the value (-1: an input), `death` the last reader.

    A result dies at the number of lines, as does an input that no line reads.
    """

    name: str
    bytes: int
    birth: int
    death: int


def lifetimes(trace: Trace, live_inputs: Collection[str] = ()) -> list[Lifetime]:
    """Return the lifetimes of a trace without `del` lines; `live_inputs` and views have no memory of their own."""
    lines = trace.bound_symbols
    homes = storages(lines)
    last = {
        homes.get(proxy.name, proxy.name): place
        for place, item in enumerate(lines)
        for proxy in (*item.inputs, *item.outputs)
    }
    last |= {homes.get(proxy.name, proxy.name): len(lines) for proxy in proxies(trace.outputs)}
    values = [(-1, proxy) for proxy in trace.inputs if proxy.name not in live_inputs]
    values += [(place, proxy) for place, item in enumerate(lines) for proxy in item.outputs]
    return [
        Lifetime(proxy.name, proxy.bytes, birth, last.get(proxy.name, len(lines)))
        for birth, proxy in values
        if proxy.name not in homes
    ]


def live_bytes(values: Iterable[Lifetime], lines: int) -> list[int]:
    """Return the live bytes before the first line, then during each line."""
    changes = [0] * (lines + 3)
    for value in values:
        changes[value.birth + 1] += value.bytes
        changes[value.death + 2] -= value.bytes
    return [*itertools.accumulate(changes)][: lines + 1]


def peak(trace: Trace, live_inputs: Collection[str]) -> int:
    """Return the peak bytes of a trace's values, without values in the memory of `live_inputs`."""
    return max(live_bytes(lifetimes(trace, live_inputs), len(trace.bound_symbols)))
