"""Common subexpressions: a call that was made before is not made again.

Merged are equal calls of PyTorch's operators: in the backward, and in the forward those through which no gradient
flows, for `f'(g1) + f'(g2)` is not `f'(g1 + g2)` to the bit; never one of the forward with one of the backward, whose
value would have to be saved. A backward for other grad outputs reads what was saved in the place of what was merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from switchgear.ir.aliasing import storages
from switchgear.ir.dead_code import live
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.purity import call_key, is_pure
from switchgear.ir.symbol import BACKWARD, BoundSymbol, proxies, region_of
from switchgear.ir.trace import Trace


def common_subexpressions(
    trace: Trace, count: int | None = None
) -> tuple[Trace, Mapping[str, TensorProxy]]:
    """Merge equal calls; the values that are gone come second, each with the one that stands for it.

    What comes out is not merged, nor what shares its memory: it is the caller's to write to. In a joint trace `count`
    outputs are the forward's. There a call of the forward is not merged with one of the backward, for its value would
    have to be saved; and none whose value requires grad, for a gradient of the backward would sum in another order.
    """
    joint = count is not None
    outputs = tuple(proxies(trace.outputs))
    calls = tuple(item for item in trace.bound_symbols if BACKWARD not in item.tags)
    forward = {id(item) for item in live(calls, proxies(trace.outputs[:count]))}
    home = storages(trace.bound_symbols)
    returned = {proxy.name for proxy in outputs}
    escaping = {home.get(name, name) for name in returned}
    first: dict[Any, int] = {}
    merged: dict[str, TensorProxy] = {}
    body: list[BoundSymbol] = []
    for call in trace.bound_symbols:
        item = call.reading(merged)
        ahead = id(call) in forward
        barred = joint and ahead and any(proxy.requires_grad for proxy in item.outputs)
        key = None if barred or not is_pure(item) else call_key(item)
        if key is None:
            body.append(item)
            continue
        key = key, ahead, item.grad_enabled, item.tags, region_of(item)
        found = body[first[key]] if key in first else None
        if found is None or not _mergeable(found, item, home, returned, escaping):
            first[key] = len(body)
            body.append(item)
            continue
        body[first[key]] = replace(found, links=tuple(dict.fromkeys((*found.links, *item.links))))
        merged.update(
            (proxy.name, twin) for proxy, twin in zip(item.outputs, found.outputs, strict=True)
        )
    return (replace(trace, bound_symbols=tuple(body)) if merged else trace), merged


def _mergeable(
    first: BoundSymbol,
    second: BoundSymbol,
    home: Mapping[str, str],
    returned: set[str],
    escaping: set[str],
) -> bool:
    """Whether the results of two equal calls are the same in layout, and none the caller's to write to."""
    if len(first.outputs) != len(second.outputs):
        return False
    for one, other in zip(first.outputs, second.outputs, strict=True):
        homes = {home.get(one.name, one.name), home.get(other.name, other.name)}
        if replace(one, name=other.name) != other or not returned.isdisjoint(
            (one.name, other.name)
        ):
            return False
        # two views of one tensor share its memory anyway
        if len(homes) > 1 and not escaping.isdisjoint(homes):
            return False
    return True
