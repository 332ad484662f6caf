"""Common subexpressions: equal calls run once.

Equal calls of PyTorch's operators are merged in the backward. In the forward, only calls without a gradient are merged,
because `f'(g1) + f'(g2)` and `f'(g1 + g2)` are not bit-identical. A call of the forward is never merged with a call of
the backward: its value would have to be saved. A backward for other grad outputs reads the saved twin of a merged
value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from switchgear_core.ir.aliasing import storages
from switchgear_core.ir.dead_code import live
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.purity import call_key, is_pure
from switchgear_core.ir.symbol import BACKWARD, BoundSymbol, proxies, region_of
from switchgear_core.ir.trace import Trace


def common_subexpressions(trace: Trace, count: int | None = None) -> tuple[Trace, Mapping[str, TensorProxy]]:
    """Merge equal calls; return the trace and the removed values, each with its replacement.

    Outputs, and values that share their memory, are not merged: the caller may write to them. In a joint trace `count`
    outputs are the forward's. A forward call is then not merged with a backward call, because its value would have to
    be saved. Nor is a call whose value requires grad, because a gradient of the backward would sum in another order.
    """
    joint = count is not None
    outputs = tuple(proxies(trace.outputs))
    calls = tuple(item for item in trace.bound_symbols if BACKWARD not in item.tags)
    forward = {id(item) for item in live(calls, proxies(trace.outputs[:count]))}
    storage = storages(trace.bound_symbols)
    returned = {proxy.name for proxy in outputs}
    escaping = {storage.get(name, name) for name in returned}
    first: dict[object, int] = {}
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
        earlier = body[first[key]] if key in first else None
        if earlier is None or not _mergeable(earlier, item, storage, returned, escaping):
            first[key] = len(body)
            body.append(item)
            continue
        body[first[key]] = replace(earlier, links=tuple(dict.fromkeys((*earlier.links, *item.links))))
        merged.update((proxy.name, twin) for proxy, twin in zip(item.outputs, earlier.outputs, strict=True))
    return (replace(trace, bound_symbols=tuple(body)) if merged else trace), merged


def _mergeable(
    first: BoundSymbol,
    second: BoundSymbol,
    storage: Mapping[str, str],
    returned: set[str],
    escaping: set[str],
) -> bool:
    """Check whether the results of two equal calls have equal layouts, and the caller can write to neither."""
    if len(first.outputs) != len(second.outputs):
        return False
    for one, other in zip(first.outputs, second.outputs, strict=True):
        homes = {storage.get(one.name, one.name), storage.get(other.name, other.name)}
        if replace(one, name=other.name) != other or not returned.isdisjoint((one.name, other.name)):
            return False
        # two views of one tensor share its memory anyway
        if len(homes) > 1 and not escaping.isdisjoint(homes):
            return False
    return True
