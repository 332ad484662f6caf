"""Gradients that save two numbers per row instead of values computed from the row.

PyTorch's formulas for log_softmax and nll_loss save the logarithms of all probabilities, the latter for their shape. In
a region nothing else needs the logarithms in memory, and the backward recomputes them inside its loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

import switchgear as sg

Gradients: TypeAlias = tuple[Tensor | None, ...]

rules = sg.Table("inductor")

#: Bytes of a result too small to recompute: before a region is compiled, each of its many operators is a call.
_SMALL = 2**16


def _of_numbers(call: sg.BoundSymbol) -> bool | str:
    x = call.inputs[0]
    if x.device.type not in ("cpu", "cuda"):
        return f"not on {x.device.type}"
    if 0 in x.shape:
        return "a tensor without elements"
    is_small = all(isinstance(size, int) for size in x.shape) and math.prod(x.shape) * x.dtype.itemsize < _SMALL
    return not is_small or "a small result, which is saved"


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@rules.grad_rule(torch.ops.aten._log_softmax.default, checker=_of_numbers)
def log_softmax(self: Tensor, dim: int, half_to_float: bool) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Save each row's maximum, and the logarithm of its sum."""
    x = _wide(self)
    greatest = x.amax(dim, keepdim=True)
    shifted = x - greatest
    log_sum = shifted.exp().sum(dim, keepdim=True).log()

    def pullback(grad: Tensor) -> Tensor:
        probabilities = (_wide(self) - greatest - log_sum).exp()
        wide = _wide(grad)
        return (wide - probabilities * wide.sum(dim, keepdim=True)).to(self.dtype)

    return (shifted - log_sum).to(torch.float32 if half_to_float else self.dtype), pullback


@rules.grad_rule(torch.ops.aten.nll_loss_forward.default, checker=_of_numbers)
def nll_loss(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[tuple[Tensor, Tensor], Callable[[Tensor, Tensor | None], Gradients]]:
    """Save no `self`."""
    output, total_weight = torch.ops.aten.nll_loss_forward.default(self, target, weight, reduction, ignore_index)

    def pullback(grad: Tensor, _: Tensor | None) -> Gradients:
        like = torch.zeros((), dtype=self.dtype, device=self.device).expand(self.shape)
        options = weight, reduction, ignore_index, total_weight
        gradient = torch.ops.aten.nll_loss_backward.default(grad, like, target, *options)
        return (gradient, None) if weight is None else (gradient, None, None)

    return (output, total_weight), pullback
