"""Normalisations recomputed from their statistics, two numbers per row or channel, by elementwise lines.

A full recomputation would read its arguments once more. Saving the result would take as much memory as the argument,
which its backward reads anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from switchgear_core.grad.recompute import links_again
from switchgear_core.grad.sweep import ADD
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, Symbol
from switchgear_core.ir.trace import Names
from switchgear_core.registry.savings import Body

_aten = torch.ops.aten
_LAYER_NORM = _aten.native_layer_norm.default
#: The second overload represents a kernel of GPUs, and occurs in training alone.
_BATCH_NORM = _aten._native_batch_norm_legit_functional.default
_BATCH_NORMS = (_BATCH_NORM, _aten._batch_norm_with_update_functional.default)
_SUB = Symbol("aten.sub.Tensor", _aten.sub.Tensor)
_MUL = Symbol("aten.mul.Tensor", _aten.mul.Tensor)
CAST = Symbol("aten._to_copy.default", _aten._to_copy.default)
_VIEW = Symbol("aten.view.default", _aten.view.default)


def with_statistics(forward: Body, names: Names) -> Body:
    """Return a forward with layer and batch norms computed from statistics, for recomputation in the backward."""
    return tuple([line for item in forward for line in _of_statistics(item, names)])


def _of_statistics(item: BoundSymbol, names: Names) -> Iterator[BoundSymbol]:
    links = links_again(item)

    def line(symbol: Symbol, args: tuple[object, ...], output: TensorProxy) -> BoundSymbol:
        kwargs = {"dtype": output.dtype} if symbol is CAST else {}
        return BoundSymbol(symbol, args, kwargs, output, source=item.source, links=links)

    def of_channels(value: TensorProxy | None) -> TensorProxy | None:
        """Return a value per channel, shaped to broadcast against channels in the second dimension."""
        if value is None or not over:
            return value
        ones = (1,) * over
        shape = (*value.shape, *ones)
        view = replace(value, name=names.fresh(), shape=shape, stride=(1, *ones))
        lines.append(line(_VIEW, (value, shape), view))
        return view

    x, weight, bias = _normalised(item)
    if x is None:
        yield item
        return
    result, mean, deviation, *rest = item.outputs
    unread = replace(result, name=names.fresh())
    yield replace(item, output=(unread, mean, deviation, *rest), links=links)
    over = len(x.shape) - 2 if item.symbol.fn in _BATCH_NORMS else 0
    lines: list[BoundSymbol] = []
    value = x
    for symbol, other in ((_SUB, mean), (_MUL, deviation), (_MUL, weight), (ADD, bias)):
        if other is not None:
            output = replace(unread, name=names.fresh(), dtype=mean.dtype)
            lines.append(line(symbol, (value, of_channels(other)), output))
            value = output
    if result.dtype != mean.dtype:
        lines.append(line(CAST, (value,), result))
    yield from (*lines[:-1], replace(lines[-1], output=result))


def _normalised(
    item: BoundSymbol,
) -> tuple[TensorProxy | None, TensorProxy | None, TensorProxy | None]:
    """Return the input, weight and bias of a normalisation; None for a line without statistics of its input."""
    if item.symbol.fn is _LAYER_NORM:
        x, _, weight, bias, _ = item.args
    elif item.symbol.fn in _BATCH_NORMS and (item.symbol.fn is not _BATCH_NORM or item.args[5]):
        x, weight, bias = item.args[:3]
    else:
        return None, None, None
    of_channels = (*item.outputs[1:3], weight, bias) if item.symbol.fn in _BATCH_NORMS else ()
    result, mean = item.outputs[:2]
    fits = (
        all(value is None or value.stride == (1,) for value in of_channels)
        # intermediate results have the layout of the input
        and x.stride == result.stride
        # statistics of 2 bytes may be wider than PyTorch's fakes of a CPU batch norm say
        and mean.dtype.itemsize > 2
    )
    return (x, weight, bias) if fits else (None, None, None)
