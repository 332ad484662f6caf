"""Normalisations made again from their statistics, of two numbers a row: by what depends on single elements alone.

To run one again is to go over its arguments once more, and its result takes as much as its argument, which its backward
reads anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from switchgear.grad.recompute import Body, links_again
from switchgear.grad.sweep import ADD
from switchgear.ir.symbol import BoundSymbol, Symbol
from switchgear.ir.trace import Names

_aten = torch.ops.aten
_SUB = Symbol("aten.sub.Tensor", _aten.sub.Tensor)
_MUL = Symbol("aten.mul.Tensor", _aten.mul.Tensor)
CAST = Symbol("aten._to_copy.default", _aten._to_copy.default)


def with_statistics(forward: Body, names: Names) -> Body:
    """A forward in which results of layer norms are made of statistics: for the backward, which may make them again."""
    return tuple([line for item in forward for line in _of_statistics(item, names)])


def _of_statistics(item: BoundSymbol, names: Names) -> Iterator[BoundSymbol]:
    if item.symbol.fn is not _aten.native_layer_norm.default:
        yield item
        return
    x, _, weight, bias, _ = item.args
    result, mean, deviation = item.outputs
    links = links_again(item)
    unread = replace(result, name=names.fresh())
    yield replace(item, output=(unread, mean, deviation), links=links)
    steps = [(_SUB, mean), (_MUL, deviation), (_MUL, weight), (ADD, bias)]
    value: object = x
    lines = []
    for symbol, other in steps:
        if other is not None:
            made = replace(unread, name=names.fresh(), dtype=mean.dtype)
            lines.append(
                BoundSymbol(symbol, (value, other), {}, made, source=item.source, links=links)
            )
            value = made
    if result.dtype != mean.dtype:
        lines.append(
            BoundSymbol(
                CAST, (value,), {"dtype": result.dtype}, result, source=item.source, links=links
            )
        )
    yield from (*lines[:-1], replace(lines[-1], output=result))
