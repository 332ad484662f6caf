"""Translations of operators that move elements: views, joins, padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import switchgear as sg

from .definition import Value
from .translation import Translator, Untranslatable, dims_of, number, translates


def _value(t: Translator, x: sg.TensorProxy) -> Value:
    return t.tensor(x, x.dtype)


@translates("view", "_unsafe_view", "_reshape_alias")
def view(t: Translator, x: sg.TensorProxy, size: Any, stride: Any = None) -> Value:
    return t.reshaped(_value(t, x), x.shape, t.output.shape)


@translates("expand")
def expand(t: Translator, x: sg.TensorProxy, size: Any, *, implicit: bool = False) -> Value:
    shape = t.output.shape
    value = t.raised(_value(t, x), len(x.shape), len(shape))
    before = (1,) * (len(shape) - len(x.shape)) + x.shape
    if before == shape:
        return value
    sizes = [-1 if old == new else new for old, new in zip(before, shape, strict=True)]
    return t.call("expand", value, sizes)


@translates("permute")
def permute(t: Translator, x: sg.TensorProxy, dims: Sequence[int]) -> Value:
    return _permuted(t, x, [dim % len(x.shape) for dim in dims])


@translates("transpose.int")
def transpose(t: Translator, x: sg.TensorProxy, first: int, second: int) -> Value:
    dims = list(range(len(x.shape)))
    if dims:
        dims[first], dims[second] = dims[second], dims[first]
    return _permuted(t, x, dims)


@translates("t")
def transposed(t: Translator, x: sg.TensorProxy) -> Value:
    return _permuted(t, x, list(reversed(range(len(x.shape)))))


def _permuted(t: Translator, x: sg.TensorProxy, dims: list[int]) -> Value:
    value = _value(t, x)
    return value if dims == sorted(dims) else t.call("permute", value, dims)


@translates("unsqueeze")
def unsqueeze(t: Translator, x: sg.TensorProxy, dim: int) -> Value:
    place = dim % t.rank
    return t.call("broadcast", _value(t, x), [other == place for other in range(t.rank)])


@translates("squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(t: Translator, x: sg.TensorProxy, dim: Any = None) -> Value:
    dims = [] if dim == [] or dim == () else dims_of(dim, len(x.shape))
    dropped = [dim for dim in dims if x.shape[dim] == 1]
    return t.call("squeeze", _value(t, x), dropped, True) if dropped else _value(t, x)


def _sliced(t: Translator, x: sg.TensorProxy, dim: int, start: int, end: int) -> Value:
    """Return the elements from `start` up to `end`, both inside the bounds."""
    value = _value(t, x)
    if (start, end) == (0, x.shape[dim]):
        return value
    rank = range(len(x.shape))
    starts = [start if other == dim else 0 for other in rank]
    ends = [end if other == dim else t.size(x, other) for other in rank]
    cut = t.call("slice", value, starts, ends)
    if end - start > 1:
        return cut
    # as with `reshape`, a dimension of size 1 must be a broadcast one
    return t.call("broadcast", t.call("squeeze", cut, [dim], True), [other == dim for other in rank])


@translates("slice.Tensor")
def slice_(t: Translator, x: sg.TensorProxy, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    if step != 1:
        raise Untranslatable(f"with step={step}, which nvFuser's slice has not")
    first, last, _ = slice(start, end).indices(x.shape[dim])
    return _sliced(t, x, dim % len(x.shape), first, max(first, last))


@translates("select.int")
def select(t: Translator, x: sg.TensorProxy, dim: int, index: int) -> Value:
    place = dim % len(x.shape)
    index %= x.shape[place]
    return t.call("squeeze", _sliced(t, x, place, index, index + 1), [place], True)


@translates("split.Tensor")
def split(t: Translator, x: sg.TensorProxy, size: int, dim: int = 0) -> tuple[Value, ...]:
    length = x.shape[dim]
    return _split(t, x, dim % len(x.shape), [min(size, length - start) for start in range(0, length, size)])


@translates("split_with_sizes")
def split_with_sizes(t: Translator, x: sg.TensorProxy, sizes: Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    return _split(t, x, dim % len(x.shape), sizes)


def _split(t: Translator, x: sg.TensorProxy, dim: int, sizes: Sequence[int]) -> tuple[Value, ...]:
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return tuple([_sliced(t, x, dim, start, start + size) for start, size in zip(starts, sizes, strict=True)])


@translates("unbind.int")
def unbind(t: Translator, x: sg.TensorProxy, dim: int = 0) -> tuple[Value, ...]:
    return tuple([select(t, x, dim, index) for index in range(x.shape[dim])])


@translates("cat")
def cat(t: Translator, tensors: Sequence[sg.TensorProxy], dim: int = 0) -> Value:
    if any(len(x.shape) != t.rank for x in tensors):
        raise Untranslatable("of tensors of different ranks")
    values = [t.tensor(x, t.output.dtype) for x in tensors]
    return t.call("cat", values, dim % t.rank, dtype=t.output.dtype)


@translates("stack")
def stack(t: Translator, tensors: Sequence[sg.TensorProxy], dim: int = 0) -> Value:
    place = dim % t.rank
    flags = [other == place for other in range(t.rank)]
    values = [t.call("broadcast", t.tensor(x, t.output.dtype), flags) for x in tensors]
    return t.call("cat", values, place, dtype=t.output.dtype)


@translates("constant_pad_nd")
def pad(t: Translator, x: sg.TensorProxy, widths: Sequence[int], value: float = 0) -> Value:
    return _filled_up(t, _value(t, x), list(widths), value)


def _filled_up(t: Translator, value: Value, widths: list[int], fill: float) -> Value:
    assert value.dtype is not None
    # nvFuser needs the number in the tensor's dtype, and treats True as an integer
    wide = t.cast(value, torch.int64) if value.dtype == torch.bool else value
    assert wide.dtype is not None
    return t.cast(t.call("pad", wide, widths, number(fill, wide.dtype)), value.dtype)


def _padded(t: Translator, value: Value, rank: int, dim: int, before: int, after: int) -> Value:
    """Return a tensor padded with zeros in one dimension."""
    widths = [0] * (2 * (rank - 1 - dim)) + [before, after]
    return _filled_up(t, value, widths, 0) if before or after else value


@translates("slice_backward")
def slice_backward(
    t: Translator, grad: sg.TensorProxy, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> Value:
    if step != 1:
        raise Untranslatable(f"with step={step}, which nvFuser's pad has not")
    place = dim % len(sizes)
    first, _, _ = slice(start, end).indices(sizes[place])
    after = sizes[place] - first - grad.shape[place]
    return _padded(t, _value(t, grad), len(sizes), place, first, after)


@translates("select_backward")
def select_backward(t: Translator, grad: sg.TensorProxy, sizes: Sequence[int], dim: int, index: int) -> Value:
    place = dim % len(sizes)
    index %= sizes[place]
    row = t.call("broadcast", _value(t, grad), [other == place for other in range(len(sizes))])
    return _padded(t, row, len(sizes), place, index, sizes[place] - index - 1)


@translates("slice_scatter")
def slice_scatter(
    t: Translator,
    x: sg.TensorProxy,
    source: sg.TensorProxy,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    if step != 1:
        raise Untranslatable(f"with step={step}, which nvFuser's pad has not")
    place, rank = dim % len(x.shape), len(x.shape)
    first, _, _ = slice(start, end).indices(x.shape[place])
    return _replaced(t, x, t.tensor(source, x.dtype), place, first, first + source.shape[place], rank)


@translates("select_scatter")
def select_scatter(t: Translator, x: sg.TensorProxy, source: sg.TensorProxy, dim: int, index: int) -> Value:
    place, rank = dim % len(x.shape), len(x.shape)
    index %= x.shape[place]
    row = t.call("broadcast", t.tensor(source, x.dtype), [other == place for other in range(rank)])
    return _replaced(t, x, row, place, index, index + 1, rank)


def _replaced(t: Translator, x: sg.TensorProxy, value: Value, dim: int, start: int, end: int, rank: int) -> Value:
    """Return `x` with `value` from `start` up to `end`."""
    places = t.iota(t.shape(x), dim)
    inside = t.call(
        "logical_and",
        t.call("ge", places, start, dtype=torch.bool),
        t.call("lt", places, end, dtype=torch.bool),
    )
    around = _padded(t, value, rank, dim, start, x.shape[dim] - end)
    return t.call("where", inside, around, _value(t, x), dtype=x.dtype)


@translates("repeat")
def repeat(t: Translator, x: sg.TensorProxy, repeats: Sequence[int]) -> Value:
    shape = (1,) * (len(repeats) - len(x.shape)) + x.shape
    value = t.raised(_value(t, x), len(x.shape), len(shape))
    if math.prod(repeats) == 1:
        return value
    flags = [place % 2 == 0 for place in range(2 * len(shape))]
    sizes = [part for count, size in zip(repeats, shape, strict=True) for part in (count, size)]
    tiled = t.call("expand", t.call("broadcast", value, flags), sizes)
    return t.reshaped(tiled, sizes, t.output.shape)


def _triangle(name: str, comparison: str) -> None:
    @translates(name)
    def translation(t: Translator, x: sg.TensorProxy, diagonal: int = 0) -> Value:
        shape, rank = t.shape(x), len(x.shape)
        column, row = t.iota(shape, rank - 1), t.iota(shape, rank - 2)
        mask = t.call(comparison, t.call("sub", column, row), diagonal, dtype=torch.bool)
        return t.call("where", mask, _value(t, x), t.constant(0, x.dtype, rank), dtype=x.dtype)


for _name, _comparison in (("tril", "le"), ("triu", "ge")):
    _triangle(_name, _comparison)
