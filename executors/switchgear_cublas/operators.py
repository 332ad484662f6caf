"""The operators of Switchgear, each for an epilogue of cuBLASLt: their definition, for any device.

They are composites of PyTorch's operators (`CompositeImplicitAutograd`), so PyTorch infers shapes and derivatives of
any order; executors that decline an operator run its parts. Below, rows are all dimensions but the last, flattened. A
weight is laid out as in `torch.nn.Linear`, or, `transposed`, as the second argument of `torch.addmm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg

_NAMESPACE = "switchgear_cublas"
_library = torch.library.Library(_NAMESPACE, "DEF")
_LINEAR = "Tensor x, Tensor weight, Tensor? bias=None, bool transposed=False"


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False) -> Tensor:
    """Compute GELU of a linear layer, in its form with tanh, as in the epilogue.

    Args:
        x: `[..., in]`.
        weight: `[out, in]`, or transposed.
        bias: `[out]`, or None.
        transposed: whether the weight is `[in, out]`.

    Returns:
        `[..., out]`.
    """
    return linear_gelu_aux(x, weight, bias, transposed)[0]


def linear_gelu_aux(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute GELU of a linear layer, and keep the input of the GELU for the backward.

    Args:
        x: `[..., in]`.
        weight: `[out, in]`, or transposed.
        bias: `[out]`, or None.
        transposed: whether the weight is `[in, out]`.

    Returns:
        The result and the input of the GELU, both `[..., out]`.
    """
    z = linear(x, weight, bias, transposed)
    return F.gelu(z, approximate="tanh"), z


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False) -> Tensor:
    """Compute ReLU of a linear layer.

    Args:
        x: `[..., in]`.
        weight: `[out, in]`, or transposed.
        bias: `[out]`, or None.
        transposed: whether the weight is `[in, out]`.

    Returns:
        `[..., out]`.
    """
    return F.relu(linear(x, weight, bias, transposed))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False) -> Tensor:
    """Compute a linear layer alone.

    Args:
        x: `[..., in]`.
        weight: `[out, in]`, or transposed.
        bias: `[out]`, or None.
        transposed: whether the weight is `[in, out]`.

    Returns:
        `[..., out]`.
    """
    return F.linear(x, weight.t() if transposed else weight, bias)


def linear_fp8(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute a linear layer whose product an executor may compute in 8 bits; PyTorch computes it exactly.

    Args:
        x: `[..., in]`.
        weight: `[out, in]`.
        bias: `[out]`, or None.

    Returns:
        `[..., out]`, in the dtype of `x`.
    """
    return F.linear(x, weight, bias)


def matmul_dgelu(grad: Tensor, weight: Tensor, z: Tensor) -> Tensor:
    """Compute the gradient of the input of a GELU (tanh), through the next linear layer.

    Args:
        grad: the gradient of the next layer's output, `[rows, out]`.
        weight: the next layer's weight, `[out, in]`.
        z: the input of the GELU, `[..., in]`.

    Returns:
        The gradient of `z`.
    """
    product = torch.mm(grad, weight).view(z.shape)
    result: Tensor = torch.ops.aten.gelu_backward(product, z, approximate="tanh")
    return result


def matmul_bgrad(grad: Tensor, rows: Tensor, transposed: bool = False) -> tuple[Tensor, Tensor]:
    """Compute the gradients of a linear layer's weight and bias.

    Args:
        grad: the gradient of the layer's output, `[rows, out]`.
        rows: the layer's input, `[rows, in]`.
        transposed: whether the weight is `[in, out]`.

    Returns:
        The gradients of the weight, in its layout, and of the bias, `[1, out]`.
    """
    product = torch.mm(rows.t(), grad) if transposed else torch.mm(grad.t(), rows)
    return product, grad.sum(0, keepdim=True)


def _define(function: Callable[..., Any], arguments: str, result: str) -> sg.Symbol:
    name = function.__name__
    _library.define(f"{name}({arguments}) -> {result}")
    _library.impl(name, function, "CompositeImplicitAutograd")
    overload = getattr(torch.ops.switchgear_cublas, name).default
    return sg.Symbol(str(overload), overload)


#: The operators as symbols of traces.
LINEAR_GELU = _define(linear_gelu, _LINEAR, "Tensor")
LINEAR_GELU_AUX = _define(linear_gelu_aux, _LINEAR, "(Tensor, Tensor)")
LINEAR_RELU = _define(linear_relu, _LINEAR, "Tensor")
LINEAR_FP8 = _define(linear_fp8, "Tensor x, Tensor weight, Tensor? bias=None", "Tensor")
MATMUL_DGELU = _define(matmul_dgelu, "Tensor grad, Tensor weight, Tensor z", "Tensor")
MATMUL_BGRAD = _define(matmul_bgrad, "Tensor grad, Tensor rows, bool transposed=False", "(Tensor, Tensor)")
