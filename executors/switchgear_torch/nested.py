"""Nested calls: a view of a view, or a concatenation of concatenations (growing caches), becomes one call."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

import switchgear as sg

_aten = torch.ops.aten
_CONCATENATIONS = (_aten.cat.default, torch.cat)
_VIEWS = (_aten.view.default, torch.Tensor.view)


def join_nested(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Let `view` and `cat` read the arguments of the inner calls, if the inner results have no other reader.

    Only for values whose elements lie in memory in order; the results are then laid out likewise.
    """
    if trace.numbers or any(map(sg.passes.written_arguments, trace.bound_symbols)):
        return trace
    read = Counter(proxy.name for item in trace.bound_symbols for proxy in item.inputs)
    read.update(proxy.name for proxy in trace.outputs if proxy is not None)
    plain_calls: dict[str, sg.BoundSymbol] = {}
    joined: set[str] = set()
    body = []
    for call in trace.bound_symbols:
        item = call
        if _is_plain(item):
            inner = {
                proxy.name: plain_calls[proxy.name]
                for proxy in item.inputs
                if proxy.name in plain_calls and read[proxy.name] == 1 and _is_nested(plain_calls[proxy.name], item)
            }
            if inner:
                item = _joined(item, inner)
                joined.update(inner)
            plain_calls[item.output.name] = item
        body.append(item)
    lines = tuple([item for item in body if joined.isdisjoint(proxy.name for proxy in item.outputs)])
    return replace(trace, bound_symbols=lines) if joined else trace


def _is_plain(item: sg.BoundSymbol) -> bool:
    """Check whether a call joins or views values of one dtype, all in row-major order, as its result."""
    if item.subsymbols or not (_runs(item, _CONCATENATIONS) or _runs(item, _VIEWS)):
        return False
    if not item.args or not item.kwargs.keys() <= {"dim"} or isinstance(item.args[-1], torch.dtype):
        return False
    values = (*item.inputs, item.output)
    return all(value.dtype == item.output.dtype and value.stride == _row_major(value.shape) for value in values)


def _runs(item: sg.BoundSymbol, functions: tuple[object, ...]) -> bool:
    return item.implementation is not None and any(item.implementation.fn is fn for fn in functions)


def _is_nested(inner: sg.BoundSymbol, outer: sg.BoundSymbol) -> bool:
    if _runs(outer, _VIEWS):
        return _runs(inner, _VIEWS)
    return _runs(inner, _CONCATENATIONS) and _dim(inner) == _dim(outer)


def _dim(item: sg.BoundSymbol) -> int:
    dim: int = sg.passes.argument(item, "dim")
    return dim % len(item.output.shape)


def _joined(outer: sg.BoundSymbol, inner: dict[str, sg.BoundSymbol]) -> sg.BoundSymbol:
    first, *others = outer.args
    if isinstance(first, sg.TensorProxy):
        return replace(outer, args=(inner[first.name].args[0], *others))
    parts = [inner[part.name].args[0] if part.name in inner else [part] for part in first]
    return replace(outer, args=([*itertools.chain.from_iterable(parts)], *others))


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor."""
    strides = itertools.accumulate((max(size, 1) for size in shape[:0:-1]), operator.mul, initial=1)
    return tuple(strides)[: len(shape)][::-1]
