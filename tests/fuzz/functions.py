"""Custom autograd functions that random programs and fixed ones call by name.

A printed program brings the source of what it uses, so everything here stands on its own.
"""

from __future__ import annotations

from typing import Any

import torch


class Cubed(torch.autograd.Function):
    """Saves its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 3.25 * x * x  # not the derivative, so that nobody else's formula can stand in for it


class SinAndCos(torch.autograd.Function):
    """Several outputs, both saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sin, cos = x.sin(), x.cos()
        ctx.save_for_backward(sin, cos)
        return sin, cos

    @staticmethod
    def backward(ctx: Any, grad_sin: torch.Tensor, grad_cos: torch.Tensor) -> Any:
        sin, cos = ctx.saved_tensors
        return grad_sin * cos * 1.5 - grad_cos * sin


class ScaledInPlace(torch.autograd.Function):
    """Writes to its input and says so."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        ctx.mark_dirty(x)
        return x.mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.scale * 1.5, None


class ReluAndMask(torch.autograd.Function):
    """One output without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = x > 0
        ctx.save_for_backward(mask)
        ctx.mark_non_differentiable(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        (mask,) = ctx.saved_tensors
        return torch.where(mask, grad * 0.75, 0.0)


class Weighted(torch.autograd.Function):
    """A `setup_context`, two inputs, and no gradient for the number among them."""

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor, weight: float) -> torch.Tensor:
        return x * weight + y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.weight = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.weight * 1.25, grad.clone(), None


class Swapped(torch.autograd.Function):
    """A view of its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, -1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.transpose(0, -1) * 1.5


class Rounded(torch.autograd.Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad


class Reversed(torch.autograd.Function):
    """A gradient reversal layer: returns its input, as a view."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.neg() * ctx.scale, None


FUNCTIONS: tuple[type[torch.autograd.Function], ...] = (
    Cubed,
    SinAndCos,
    ScaledInPlace,
    ReluAndMask,
    Weighted,
    Swapped,
    Rounded,
    Reversed,
)
