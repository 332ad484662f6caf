"""Calls without effect: views of the same layout, and copies of values that nobody writes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from switchgear_core.ir.aliasing import storages
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, proxies
from switchgear_core.ir.trace import Trace

_aten = torch.ops.aten
_COPIES = frozenset({_aten.clone.default, _aten._to_copy.default})


def no_ops(trace: Trace) -> tuple[Trace, Mapping[str, TensorProxy]]:
    """Replace results by arguments of the same layout, where both share memory or could.

    Also return the removed results, each with its argument. An output remains a tensor of its own. A copy remains where
    its memory, or its source's, is not the trace's alone, or a gradient flows through it.
    """
    storage = storages(trace.bound_symbols)
    returned = {proxy.name for proxy in proxies(trace.outputs)}
    shared = {storage.get(name, name) for name in returned}.union(proxy.name for proxy in trace.inputs)
    same: dict[str, TensorProxy] = {}
    body: list[BoundSymbol] = []
    for call in trace.bound_symbols:
        item = call.reading(same)
        output = item.output
        is_kept = not isinstance(output, TensorProxy) or output.name in returned
        unchanged = (
            () if is_kept else [proxy for proxy in item.inputs if _is_unchanged(item, proxy, output, storage, shared)]
        )
        if unchanged:
            same[output.name] = unchanged[0]
        else:
            body.append(item)
    return (replace(trace, bound_symbols=tuple(body)) if same else trace), same


def _is_unchanged(
    item: BoundSymbol,
    source: TensorProxy,
    output: TensorProxy,
    storage: Mapping[str, str],
    shared: set[str],
) -> bool:
    """Check whether the result of a call equals an argument in every respect."""
    if source.metadata != output.metadata:
        return False
    leaves = tuple(leaves_of([item]))
    start, end = storage.get(source.name, source.name), storage.get(output.name, output.name)
    if start == end:
        # the offset of as_strided is not relative to its argument
        return all(leaf.symbol.fn is not _aten.as_strided.default for leaf in leaves)
    if len(leaves) > 1 or leaves[0].symbol.fn not in _COPIES or leaves[0].args[0] != source:
        return False
    return not output.requires_grad and shared.isdisjoint((start, end))
