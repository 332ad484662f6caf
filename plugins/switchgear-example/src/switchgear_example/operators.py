"""This package's own operators; Switchgear treats these like any other operator of PyTorch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


@torch.library.custom_op("switchgear_example::fast_gelu", mutates_args=())
def fast_gelu(x: Tensor) -> Tensor:
    """Compute GELU by its approximation with tanh; a real package would launch a kernel here.

    Args:
        x: a tensor of any shape.

    Returns:
        A tensor of the same shape.
    """
    return 0.5 * x * (1 + torch.tanh(_SCALE * (x + _CUBIC * x**3)))


@fast_gelu.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("switchgear_example::rounded", mutates_args=())
def rounded(x: Tensor, step: float) -> Tensor:
    """Round `x` to multiples of `step`.

    Args:
        x: a tensor of any shape.
        step: a positive number.

    Returns:
        A tensor of the same shape.
    """
    return torch.round(x / step) * step


@rounded.register_fake
def _(x: Tensor, step: float) -> Tensor:
    return torch.empty_like(x)


def fast_gelu_derivative(x: Tensor) -> Tensor:
    """Compute the derivative of `fast_gelu`, in plain PyTorch."""
    tanh = torch.tanh(_SCALE * (x + _CUBIC * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * _SCALE * (1 + 3 * _CUBIC * x**2)
