"""Short chains: one call, or none, in place of two PyTorch calls with the same result.

For small tensors a call costs more than its computation. PyTorch's gradient of a linear layer transposes the weight
twice, and its sum for the bias keeps a dimension, which a view then drops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

import switchgear as sg

from .reuse_buffers import runs_as_it_is

_aten = torch.ops.aten
#: Overloads whose result is not at the argument's place, passes no tangent, is a copy, or is not a view.
_NO_LINK = frozenset(
    {
        _aten.as_strided.default,
        _aten.detach.default,
        _aten.contiguous.default,
        _aten.reshape.default,
        _aten.resolve_conj.default,
        _aten.resolve_neg.default,
        _aten._reshape_alias.default,
        _aten._unsafe_view.default,
        _aten.lift_fresh.default,
    }
)
_VIEWS = frozenset({_aten.view.default, _aten.squeeze.dim, _aten.squeeze.dims})


def short_chains(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Replace a view of a view of a value with the same layout by the value, and let sums drop summed dimensions.

    An output is replaced only if it is a gradient, and the value belongs to the trace and is not returned elsewhere.
    """
    if trace.numbers:
        return trace
    results = [proxy for proxy in trace.outputs if proxy is not None]
    reads: dict[str, int] = {}
    for proxy in (*results, *(proxy for item in trace.bound_symbols for proxy in item.inputs)):
        reads[proxy.name] = reads.get(proxy.name, 0) + 1
    returned = {proxy.name for proxy in results}
    barred = {*returned, *trace.tensors, *(proxy.name for proxy in trace.inputs)}
    same: dict[str, sg.TensorProxy] = {}
    views: dict[str, sg.BoundSymbol] = {}
    sums: dict[str, int] = {}
    body: list[sg.BoundSymbol] = []
    for call in trace.bound_symbols:
        item = call.reading(same)
        output = item.output
        if isinstance(output, sg.TensorProxy) and runs_as_it_is(item) and not sg.passes.written_arguments(item):
            source = sg.passes.aliased_argument(item)
            if source is not None and item.symbol.fn not in _NO_LINK:
                views[output.name] = item
                origin = _origin(output, views)
                inner = output.name not in returned
                if origin is not None and (inner or (context.gives_gradients and origin.name not in barred)):
                    same[output.name] = origin
                    reads[origin.name] = reads.get(origin.name, 0) + reads.get(output.name, 0)
                    if not inner:
                        barred.add(origin.name)
                    continue
                if source.name in sums and reads[source.name] == 1 and item.symbol.fn in _VIEWS:
                    at = sums[source.name]
                    if (dropped := _without_dimensions(body[at], output)) is not None:
                        body[at] = dropped
                        del views[output.name]  # no longer a view
                        continue
            elif item.symbol.fn is _aten.sum.dim_IntList:
                sums[output.name] = len(body)
        body.append(item)
    if len(body) == len(trace.bound_symbols):
        return trace
    outputs = tuple([proxy and same.get(proxy.name, proxy) for proxy in trace.outputs])
    return replace(trace, bound_symbols=_without_unread(body, views, outputs), outputs=outputs)


def _without_unread(
    body: Sequence[sg.BoundSymbol], views: Mapping[str, sg.BoundSymbol], outputs: Sequence[sg.TensorProxy | None]
) -> tuple[sg.BoundSymbol, ...]:
    """Return the calls without views that have lost their readers."""
    read = {proxy.name for proxy in outputs if proxy is not None}
    lines = []
    for item in reversed(body):
        names = [proxy.name for proxy in item.outputs]
        if read.isdisjoint(names) and not views.keys().isdisjoint(names):
            continue
        read.update(proxy.name for proxy in item.inputs)
        lines.append(item)
    return tuple(reversed(lines))


def _origin(view: sg.TensorProxy, views: Mapping[str, sg.BoundSymbol]) -> sg.TensorProxy | None:
    """Return the nearest base of a view with the view's layout."""
    source = view
    while (item := views.get(source.name)) is not None:
        base = sg.passes.aliased_argument(item)
        assert base is not None
        source = base
        if source.layout == view.layout:
            return source
    return None


def _without_dimensions(item: sg.BoundSymbol, view: sg.TensorProxy) -> sg.BoundSymbol | None:
    """Return a sum without its summed dimensions, if its view does nothing else than drop them."""
    x, dims, *rest = item.args
    if rest != [True] or not dims or not x.shape:
        return None
    summed = {dim % len(x.shape) for dim in dims}
    remaining_dims = [dim for dim in range(len(x.shape)) if dim not in summed]
    if (view.shape, view.stride) != tuple(
        [tuple([ns[d] for d in remaining_dims]) for ns in (item.output.shape, item.output.stride)]
    ):
        return None
    return replace(item, args=(x, dims), output=view)
