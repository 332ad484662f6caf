"""Checks of Switchgear against this PyTorch: private names that are missing or behave differently.

`tests/core/test_torch_private.py` tests each name in depth.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from switchgear.jitting import jit
from switchgear_core.torch_private.names import missing_names


def diagnosis() -> list[str]:
    """Return a line for each missing private name; if none is missing, a line if the behaviour has changed."""
    faults = [f"missing: {path}, which is for {use}" for path, use in missing_names().items()]
    if faults:
        return faults
    try:
        off = "" if _gradients_are_eagers() else "they differ"
    except Exception as error:
        off = f"{type(error).__name__}: {error}"
    return [f"off: gradients of a jitted function: {off}"] * bool(off)


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 2


def _gradients_are_eagers() -> bool:
    """Compare a function with a write in place, an `autograd.Function` and a checkpointed region."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = checkpoint(torch.sin, x, use_reentrant=False)
        z[0] += y.exp()[0]
        return (_Twice.apply(z) * y).sum()  # type: ignore[no-any-return, no-untyped-call]

    def gradients(computation: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        x, y = (torch.linspace(0, 1, 6).reshape(2, 3).requires_grad_() for _ in range(2))
        return torch.autograd.grad(computation(x, y), (x, y))

    jitted = jit(function, executors=["torch"], strict=True)
    return all(map(torch.equal, gradients(jitted), gradients(function)))
