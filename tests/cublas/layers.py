"""Linear layers and activations, in the spellings and layouts that traces hold them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from tests.core.training import Function, operators

ACTIVATIONS: dict[str, Function] = {
    "relu": F.relu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
}
#: What an activation becomes with the linear layer before it, in inference.
FUSED = {"relu": "linear_relu", "gelu_tanh": "linear_gelu"}


class MLP(nn.Module):
    """That of a transformer."""

    def __init__(self, activation: str, bias: bool = True, width: int = 8, device: str = "cpu") -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=bias, device=device)
        self.down = nn.Linear(2 * width, width, bias=bias, device=device)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(ACTIVATIONS[self.activation](self.up(x)))
        return y


def linear(activation: str) -> Function:
    def function(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y: Tensor = ACTIVATIONS[activation](F.linear(x, weight, bias))
        return y

    return function


def addmm(activation: str) -> Function:
    """With a weight as `transformers` lays out that of GPT-2."""

    def function(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product = torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
        y: Tensor = ACTIVATIONS[activation](product)
        return y

    return function


def transposed(value: Tensor) -> Tensor:
    return value.mT.contiguous().mT


def strided(value: Tensor) -> Tensor:
    """The same numbers, with gaps between the elements."""
    wide = value.new_zeros(*value.shape[:-1], 2 * value.shape[-1])
    wide[..., ::2] = value
    return wide[..., ::2]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda value: value,
    "transposed": transposed,
    "strided": strided,
}


def own(trace: sg.Trace) -> list[str]:
    """The operators of this executor that a trace calls."""
    names = (name.removesuffix(".default") for name in operators(trace))
    return [name.removeprefix("switchgear_cublas.") for name in names if name.startswith("switchgear_cublas.")]


def cublas(function: Any, *others: str, **options: Any) -> Any:
    return sg.jit(function, executors=["cublas", *others, "torch"], **options)
