"""Checks of Switchgear against this PyTorch: private names that are missing or behave differently.

Each check takes milliseconds; `tests/core/test_torch_private.py` tests each name in depth.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from switchgear.jitting import jit
from switchgear_core import torch_private as internals
from switchgear_core.patches import redirected
from switchgear_core.torch_private.names import missing_names


def diagnosis() -> list[str]:
    """Return a line for each missing private name; if none is missing, a line for each changed behaviour."""
    faults = [f"missing: {path}, which is for {use}" for path, use in missing_names().items()]
    for name, check in BEHAVIOURS.items() if not faults else ():
        try:
            off = None if check() else "does something else"
        except Exception as error:
            off = f"raises {type(error).__name__}: {error}"
        if off is not None:
            faults.append(f"off: {name}: {off}")
    return faults


def _fakes_compute_metadata() -> bool:
    with internals.new_fake_mode():
        product = torch.empty(2, 3) @ torch.empty(3, 4)
    return internals.is_fake(product) and product.shape == (2, 4)


def _writes_are_functional() -> bool:
    zeros = torch.zeros(3)
    wrapper = internals.wrap(zeros)
    with internals.functionalization():
        wrapper.add_(1)
    return (
        internals.is_wrapper(wrapper)
        and torch.equal(internals.unwrap(wrapper), zeros + 1)
        and not zeros.any()
    )


def _guards_tell_layouts_apart() -> bool:
    check = internals.tensor_guards([torch.ones(2, 3)])
    return check(torch.zeros(2, 3)) and not check(torch.zeros(3, 2).t())


def _functions_are_seen() -> bool:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    functions: list[Any] = []

    def apply(original: Callable[..., object], function: object, *args: object) -> Any:
        functions.append(function)
        return original(function, *args)

    with redirected(torch.autograd.Function, "apply", apply):
        Twice.apply(torch.ones(1))  # type: ignore[no-untyped-call]
    return functions == [Twice]


def _checkpoints_are_seen() -> bool:
    contexts: list[Any] = []

    @contextlib.contextmanager
    def region(function: object, context_fn: object) -> Iterator[None]:
        contexts.append(context_fn)
        yield

    with internals.checkpoint_regions(region):
        checkpoint(torch.sin, torch.ones(1), use_reentrant=False)
    return contexts == [internals.NO_CONTEXT]


def _gradients_are_eagers() -> bool:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x.sin()
        z[0] += y.exp()[0]
        return (z * y).sum()

    def gradients(called: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        x, y = (torch.linspace(0, 1, 6).reshape(2, 3).requires_grad_() for _ in range(2))
        return torch.autograd.grad(called(x, y), (x, y))

    jitted = jit(function, executors=["torch"], strict=True)
    return all(map(torch.equal, gradients(jitted), gradients(function)))


#: Checks of the behaviour that Switchgear expects of PyTorch's private parts, by name.
BEHAVIOURS: dict[str, Callable[[], bool]] = {
    "fake tensors compute metadata": _fakes_compute_metadata,
    "functionalization turns writes into values": _writes_are_functional,
    "guards tell layouts apart": _guards_tell_layouts_apart,
    "calls of autograd.Function are seen": _functions_are_seen,
    "checkpointed regions are seen": _checkpoints_are_seen,
    "gradients are eager's": _gradients_are_eagers,
}
