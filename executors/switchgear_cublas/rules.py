"""Grad rules of the operators of Switchgear, in plain operators of PyTorch, and so of any order.

`patterns.py` replaces the recorded operators by the fused backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

import switchgear as sg

from .operators import LINEAR_FP8, LINEAR_GELU, LINEAR_GELU_AUX, LINEAR_RELU

Gradients: TypeAlias = tuple[Tensor, ...]
_aten: Any = torch.ops.aten
table = sg.Table("cublas")


@table.grad_rule(LINEAR_GELU.fn)
def linear_gelu(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False
) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
    """Save the input of the GELU, once."""
    y, z = LINEAR_GELU_AUX.fn(x, weight, bias, transposed)

    def pullback(grad: Tensor) -> Gradients:
        return _of_linear(_dgelu(grad, z), x, weight, bias, transposed)

    return y, pullback


@table.grad_rule(LINEAR_GELU_AUX.fn)
def linear_gelu_aux(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False
) -> tuple[tuple[Tensor, Tensor], Callable[[Tensor, Tensor], Gradients]]:
    """Save the input of the GELU, which a derivative of the backward flows through."""
    y, z = LINEAR_GELU_AUX.fn(x, weight, bias, transposed)

    def pullback(grad: Tensor, grad_z: Tensor) -> Gradients:
        return _of_linear(_dgelu(grad, z) + grad_z, x, weight, bias, transposed)

    return (y, z), pullback


@table.grad_rule(LINEAR_RELU.fn)
def linear_relu(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False
) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
    """Save the result alone, which the next layer saves too."""
    y = LINEAR_RELU.fn(x, weight, bias, transposed)

    def pullback(grad: Tensor) -> Gradients:
        return _of_linear(_aten.threshold_backward.default(grad, y, 0), x, weight, bias, transposed)

    return y, pullback


@table.grad_rule(LINEAR_FP8.fn)
def linear_fp8(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
    """Use the gradient of the exact product, in the precision of its arguments."""
    y = LINEAR_FP8.fn(x, weight, bias)
    return y, lambda grad: _of_linear(grad, x, weight, bias, False)


def _dgelu(grad: Tensor, z: Tensor) -> Tensor:
    result: Tensor = _aten.gelu_backward.default(grad, z, approximate="tanh")
    return result


def _of_linear(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Gradients:
    """Return the gradients of a linear layer, in operators known to `patterns.py`; unrequested gradients are dead."""
    grad = grad.reshape(-1, grad.shape[-1])
    rows = x.reshape(-1, x.shape[-1])
    grad_x = _aten.mm.default(grad, weight.t() if transposed else weight).view(x.shape)
    left, right = (rows, grad) if transposed else (grad, rows)
    grad_weight = _aten.mm.default(_aten.t.default(left), right)
    if bias is None:
        return grad_x, grad_weight
    return grad_x, grad_weight, _aten.sum.dim_IntList(grad, [0], True).view(-1)
