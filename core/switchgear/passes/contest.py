"""Contest: who runs a region fastest, as measured here or remembered."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from switchgear import disk_cache
from switchgear import torch_internals as internals
from switchgear.choice import Declined
from switchgear.executor import FusionExecutor
from switchgear.measuring import seconds_of
from switchgear.printing import compile_trace
from switchgear.proxy import changed_proxy, hint_of
from switchgear.selection import Selection
from switchgear.sizes import map_numbers
from switchgear.trace import Trace

from .claim import claim
from .free_last_used import free_last_used
from .reuse_buffers import reuse_buffers


@dataclass(frozen=True, slots=True)
class Outcome:
    """The candidate that is taken, if one is, and the times, or why there are none."""

    winner: FusionExecutor | None
    report: str


class Contest:
    """A region, the fusion executors that take it, and the operator executors that they are measured against.

    Symbolic `sizes` are those of the call at hand, as in all estimates.
    """

    def __init__(
        self,
        region: Trace,
        sizes: Sequence[torch.SymInt],
        candidates: Sequence[FusionExecutor],
        selection: Selection,
    ) -> None:
        self.candidates = candidates
        self._numbers = [hint_of(size) for size in sizes]
        hints = ((proxy, map_numbers(hint_of, (proxy.shape, proxy.stride))) for proxy in region.inputs)
        self._layouts = [changed_proxy(proxy, shape=shape, stride=stride) for proxy, (shape, stride) in hints]
        calls = region.bound_symbols
        self._devices = {proxy.device for item in calls for proxy in (*item.inputs, *item.outputs)}
        self._operators, _ = claim(region, selection.without_fusion())
        owners = [item.implementation.owner for item in self._operators.bound_symbols if item.implementation]
        self._names = [*(executor.name for executor in candidates), " + ".join(dict.fromkeys(owners))]
        #: All that the times depend on.
        self.key = repr(
            (region.canonical(), self._numbers, *_described(candidates, selection), _surroundings(self._devices))
        )

    def remembered(self) -> Outcome | None:
        """What was measured before, by this process or another."""
        found = disk_cache.load(self.key)
        if not isinstance(found, list) or len(found) != len(self._names):
            return None
        return self._outcome(found) if all(type(one) is float and 0 < one < math.inf for one in found) else None

    def measured(self, compiled: Sequence[Callable[..., Any] | Declined]) -> Outcome:
        """What comes of measuring what the candidates compiled; remembered, unless something fails."""
        functions = [
            _unboxed(one) if executor.boxed else one
            for executor, one in zip(self.candidates, compiled, strict=True)
            if not isinstance(one, Declined)
        ]
        if len(functions) < len(compiled):
            return Outcome(None, "; ".join(one.reason for one in compiled if isinstance(one, Declined)))
        operators = compile_trace(free_last_used(reuse_buffers(self._operators)))
        try:
            seconds = seconds_of([*functions, operators], self._numbers, self._layouts, self._devices)
        except Exception as error:
            return Outcome(None, f"not measured, for that raised {type(error).__name__}: {error}")
        disk_cache.store(self.key, seconds)
        return self._outcome(seconds)

    def _outcome(self, seconds: Sequence[float]) -> Outcome:
        times = dict(zip(self._names, seconds, strict=True))
        report = ", ".join(f"{name}: {1e6 * one:.1f} µs" for name, one in times.items())
        *fused, operators = seconds
        best = min(fused)
        winner = self.candidates[fused.index(best)] if best < operators else None
        return Outcome(winner, report if winner else f"not faster as measured, {report}")


def _unboxed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function([*args])


def _described(candidates: Sequence[FusionExecutor], selection: Selection) -> tuple[Any, ...]:
    """Those who take part, with their versions and options."""
    labels = {claimant.name: claimant.label for claimant in selection.claimants}
    fused = [(labels[one.name], type(one).__module__, type(one).__qualname__, one.fingerprint()) for one in candidates]
    return fused, [labels[executor.name] for executor in selection.without_fusion().executors]


def _surroundings(devices: Iterable[torch.device]) -> tuple[Any, ...]:
    """What decides times beside the region and who runs it."""
    return (
        _versions(),
        (torch.get_num_threads(), internals.float32_precision(), torch.are_deterministic_algorithms_enabled()),
        sorted(f"{device}: {_model(device)}" for device in devices),
    )


@cache
def _versions() -> tuple[str, str]:
    return torch.__version__, version("switchgear")


@cache
def _model(device: torch.device) -> str:
    if device.type != "cpu":
        return str(getattr(getattr(torch, device.type, None), "get_device_name", str)(device))
    try:
        described = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        described = []
    names = [line.partition(":")[2].strip() for line in described if line.startswith("model name")]
    model = names[0] if names else platform.processor() or platform.machine()
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
