"""Reuse buffers: a result is written into the memory of an argument without later readers.

On a CPU, large freed memory returns to the system, and the next allocation is faulted in page by page. This takes
longer than computing the values there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

import switchgear as sg

from .internals import has_kernel

#: Minimal size in bytes; for smaller results, freed memory is at hand.
SMALLEST = 1 << 16
_aten = torch.ops.aten
#: Kernels for other dtypes round at other points when they overwrite their inputs.
_DTYPES = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.bool})
#: Operators, next to pointwise ones, whose results have their own memory; not all schemas tell.
_ALLOCATING = frozenset(
    {
        *(_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.convolution, _aten.convolution_backward),
        *(_aten._softmax, _aten._log_softmax, _aten._softmax_backward_data, _aten._log_softmax_backward_data),
        *(_aten.native_layer_norm, _aten.native_layer_norm_backward, _aten.nll_loss_forward, _aten.nll_loss_backward),
        *(_aten.clone, _aten._to_copy, _aten.cat, _aten.embedding, _aten.sum, _aten.mean),
    }
)


def reuse_buffers(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Let pointwise operators that PyTorch runs write in place, or to `out`, where an argument ends.

    The written memory was made by PyTorch's own operators, with the same layout. No input, constant, output or call of
    another executor can see it.
    """
    lines = trace.bound_symbols
    base_of = sg.passes.storages(lines)
    last = {base_of.get(proxy.name, proxy.name): index for index, item in enumerate(lines) for proxy in item.inputs}
    barred = {base_of.get(proxy.name, proxy.name) for proxy in trace.outputs if proxy is not None}
    barred.update(trace.tensors, (proxy.name for proxy in trace.inputs))
    barred.update(base_of.get(name, name) for item in lines for name in out_of_hand(item))
    size = {proxy.name: proxy.bytes for item in lines for proxy in item.outputs}
    body: list[sg.BoundSymbol] = []
    for index, item in enumerate(lines):
        ending = [
            proxy
            for proxy in item.inputs
            if last[(start := base_of.get(proxy.name, proxy.name))] == index
            and start not in barred
            and size[start] == size[proxy.name] >= SMALLEST
            and (start == proxy.name or not _is_symbolic(proxy))
            and all(other.name == proxy.name or base_of.get(other.name, other.name) != start for other in item.inputs)
        ]
        output = item.output
        if ending and isinstance(output, sg.TensorProxy) and base_of.get(output.name, output.name) not in barred:
            body.append(next(filter(None, (written_to(item, proxy, output) for proxy in ending)), item))
        else:
            body.append(item)
    unchanged = all(item is line for item, line in zip(body, lines, strict=True))
    return trace if unchanged else replace(trace, bound_symbols=tuple(body))


def out_of_hand(item: sg.BoundSymbol) -> Iterator[str]:
    """Yield the values that a call may keep, or return under another name than `storages` knows."""
    fn: Any = item.symbol.fn
    if not runs_as_it_is(item):
        yield from (proxy.name for proxy in (*item.inputs, *item.outputs))
    elif sg.passes.aliased_argument(item) is None and not _is_pointwise(fn) and fn.overloadpacket not in _ALLOCATING:
        yield from (proxy.name for proxy in item.outputs)
        for proxy in item.inputs:
            if any(output.dtype == proxy.dtype and output.bytes <= proxy.bytes for output in item.outputs):
                yield proxy.name


def runs_as_it_is(item: sg.BoundSymbol) -> bool:
    """Check whether a call is a PyTorch operator run by PyTorch."""
    fn, implementation = item.symbol.fn, item.implementation
    is_aten = isinstance(fn, torch._ops.OpOverload) and fn.namespace == "aten"
    return is_aten and implementation is not None and implementation.fn is fn


def _is_pointwise(fn: Any) -> bool:
    # real numbers are returned as they are
    return torch.Tag.pointwise in fn.tags and fn is not _aten.conj_physical.default


def written_to(item: sg.BoundSymbol, target: sg.TensorProxy, output: sg.TensorProxy) -> sg.BoundSymbol | None:
    """Return the call with its result written to `target`, or None if there is no such form."""
    if replace(target, name=output.name, requires_grad=output.requires_grad, storage_offset=0) != replace(
        output, storage_offset=0
    ):
        return None
    fn: Any = item.symbol.fn
    if any(proxy.dtype not in _DTYPES for proxy in (*item.inputs, output)):
        return None
    if (
        not runs_as_it_is(item)
        or not _is_pointwise(fn)
        or item.is_random
        or sg.passes.aliased_argument(item) is not None
    ):
        return None
    in_place, out = _writing_forms(fn, output.device.type)
    kwargs = dict(item.kwargs)
    if in_place is None or item.args[:1] != (target,):
        if out is None:
            return None
        in_place, kwargs = out[0], {**kwargs, out[1]: target}
    implementation = sg.executors.Implementation(item.implementation.owner, in_place) if item.implementation else None
    name = f"aten.{in_place._opname}.{in_place._overloadname}"
    return replace(item, symbol=sg.Symbol(name, in_place), kwargs=kwargs, implementation=implementation)


@functools.cache
def _writing_forms(fn: Any, device: str) -> tuple[Any, tuple[Any, str] | None]:
    """Return the overload that writes to its first argument, and the `out` overload with the name of its argument."""
    arguments = _arguments(fn)
    twin = _in_place_twin(fn)
    if twin is not None and _arguments(twin) != arguments:
        twin = None
    for name in fn.overloadpacket.overloads():
        out = getattr(fn.overloadpacket, name)
        *inputs, out_argument = _arguments(out) or [("", "")]
        # without its own kernel, an overload computes the result elsewhere and copies it
        if inputs == arguments and out._schema.arguments[-1].is_out and has_kernel(out, device):
            return twin, (out, out_argument[0])
    return twin, None


def _in_place_twin(fn: Any) -> Any:
    """Return the overload that leaves the result of `fn` in its first argument, by PyTorch's naming convention."""
    return getattr(getattr(_aten, f"{fn._schema.name.partition('::')[2]}_", None), fn._overloadname, None)


def _is_symbolic(proxy: sg.TensorProxy) -> bool:
    return any(type(number) is not int for number in (*proxy.shape, *proxy.stride, proxy.storage_offset))


def _arguments(overload: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in overload._schema.arguments]
