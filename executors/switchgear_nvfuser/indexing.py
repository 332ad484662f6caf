"""Translations of operators that read by a tensor of indices, and of losses that do.

As in any fused code, an index out of bounds is no error: eager's assertion on the device is absent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

import switchgear as sg

from .definition import Value
from .translation import Translator, Untranslatable, leaves, number, translates, widened

leaves(
    "it adds up at indices that meet, which nvFuser's scatter does not",
    *("embedding_dense_backward", "scatter_add", "index_add", "index_put", "_unsafe_index_put", "scatter_reduce.two"),
)


def _rows(t: Translator, x: sg.TensorProxy, dim: int, index: sg.TensorProxy, positions: Value) -> Value:
    """Return `x` at positions in a dimension, which the dimensions of `index` replace."""
    count = math.prod(index.shape)
    rows = t.call("index_select", t.tensor(x, x.dtype), t.reshaped(positions, index.shape, [count]), dim)
    return t.reshaped(rows, (*x.shape[:dim], count, *x.shape[dim + 1 :]), t.output.shape)


@translates("index_select")
def index_select(t: Translator, x: sg.TensorProxy, dim: int, index: sg.TensorProxy) -> Value:
    if not x.shape:
        raise Untranslatable("of a tensor without dimensions")
    return _rows(t, x, dim % len(x.shape), index, t.tensor(index, torch.int64))


@translates("embedding")
def embedding(
    t: Translator,
    weight: sg.TensorProxy,
    index: sg.TensorProxy,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    return _rows(t, weight, 0, index, t.tensor(index, torch.int64))


@translates("index.Tensor")
def index(t: Translator, x: sg.TensorProxy, indices: Sequence[sg.TensorProxy | None]) -> Value:
    pairs = [(dim, tensor) for dim, tensor in enumerate(indices) if tensor is not None]
    if len(pairs) != 1:
        raise Untranslatable("by several tensors")
    ((dim, tensor),) = pairs
    if tensor.dtype == torch.bool:
        raise Untranslatable("by a mask, which makes a shape that depends on data")
    positions = t.tensor(tensor, torch.int64)
    negative = t.call("lt", positions, 0, dtype=torch.bool)
    wrapped = t.call("where", negative, t.call("add", positions, t.size(x, dim)), positions, dtype=torch.int64)
    return _rows(t, x, dim, tensor, wrapped)


@translates("gather")
def gather(t: Translator, x: sg.TensorProxy, dim: int, index: sg.TensorProxy, *, sparse_grad: bool = False) -> Value:
    if not x.shape:
        raise Untranslatable("of a tensor without dimensions")
    return t.call("gather", t.tensor(x, x.dtype), t.tensor(index, torch.int64), dim % len(x.shape))


@translates("scatter.src")
def scatter(t: Translator, x: sg.TensorProxy, dim: int, index: sg.TensorProxy, source: sg.TensorProxy) -> Value:
    if not x.shape or source.shape != index.shape:
        raise Untranslatable("of a source of another shape than the index")
    operands = t.tensor(x, x.dtype), t.tensor(index, torch.int64), t.tensor(source, x.dtype)
    return t.call("scatter", *operands, dim % len(x.shape))


# The negative log likelihood, for one row or several; `ignore_index` has weight zero.


def _picked(t: Translator, x: sg.TensorProxy, target: sg.TensorProxy, ignored: int) -> tuple[Value, Value]:
    """Return the mask of each row's target column, and whether the row counts, with a dimension for columns."""
    if len(x.shape) > 2:
        raise Untranslatable("of more than two dimensions")
    rank = len(x.shape)
    positions = t.tensor(target, torch.int64)
    column = t.call("broadcast", positions, [place == rank - 1 for place in range(rank)])
    picked = t.call("eq", t.iota(t.shape(x), rank - 1), column, dtype=torch.bool)
    return picked, t.call("ne", column, ignored, dtype=torch.bool)


def _weights(t: Translator, x: sg.TensorProxy, weight: Any, picked: Value, counts: Value, dtype: torch.dtype) -> Value:
    """Return the weight of each row, with a dimension for its columns."""
    if weight is None:
        return t.cast(counts, dtype)
    rank = len(x.shape)
    factors = t.raised(t.tensor(weight, dtype), 1, rank)
    zero = number(0, dtype)
    row_weight = t.call("sum", t.call("where", picked, factors, zero, dtype=dtype), [rank - 1], True)
    return t.call("where", counts, row_weight, zero, dtype=dtype)


@translates("nll_loss_forward")
def nll_loss(
    t: Translator, x: sg.TensorProxy, target: sg.TensorProxy, weight: Any, reduction: int, ignored: int
) -> tuple[Value, Value]:
    dtype, last = widened(x.dtype), len(x.shape) - 1
    zero = number(0, dtype)
    picked, counts = _picked(t, x, target, ignored)
    factors = _weights(t, x, weight, picked, counts, dtype)
    target_values = t.call("where", picked, t.tensor(x, dtype), zero, dtype=dtype)
    # an ignored row is not summed, even if it is infinite
    row_value = t.call("where", counts, t.call("sum", target_values, [last], True), zero, dtype=dtype)
    losses = t.call("squeeze", t.call("neg", t.call("mul", row_value, factors)), [last])
    if reduction == 0 and last:
        return losses, t.full([], 0, dtype)
    total = t.call("sum", factors, list(range(last + 1)))
    loss = t.call("sum", losses, [0]) if last else losses
    return (t.call("truediv", loss, total) if reduction == 1 else loss), total


@translates("nll_loss_backward")
def nll_loss_backward(
    t: Translator,
    grad: sg.TensorProxy,
    x: sg.TensorProxy,
    target: sg.TensorProxy,
    weight: Any,
    reduction: int,
    ignored: int,
    total: sg.TensorProxy,
) -> Value:
    dtype, rank = widened(x.dtype), len(x.shape)
    picked, counts = _picked(t, x, target, ignored)
    row_grad = t.tensor(grad, dtype)
    if reduction == 1:
        row_grad = t.call("truediv", row_grad, t.tensor(total, dtype))
    # one for all rows, or one for each
    flags = [True] * rank if not grad.shape else [place == rank - 1 for place in range(rank)]
    row_grad = t.call("mul", t.call("broadcast", row_grad, flags), _weights(t, x, weight, picked, counts, dtype))
    selected = t.call("logical_and", picked, counts)
    return t.call("where", selected, t.call("neg", row_grad), number(0, dtype), dtype=dtype)
