"""What generated programs may call by name: small custom autograd functions, and other arguments for a further call.

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


FUNCTIONS: tuple[type[torch.autograd.Function], ...] = (
    Cubed,
    SinAndCos,
    ScaledInPlace,
    ReluAndMask,
    Weighted,
    Swapped,
)


def distinct(args: list[Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """The same values in arguments that share nothing, and the new leaves."""
    fresh = [a.detach().clone().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a for a in args]
    leaves = [t for t in fresh if torch.is_tensor(t) and t.requires_grad]
    return [t if not torch.is_tensor(a) or a.is_leaf else t * 1 for a, t in zip(args, fresh, strict=True)], leaves


def detached(args: list[Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """The same arguments without gradients; one tensor twice stays one tensor."""
    fresh = {id(a): a.detach() for a in args if torch.is_tensor(a)}
    return [fresh.get(id(a), a) for a in args], []
