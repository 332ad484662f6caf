"""Modes around and inside a call: autocast, grad mode, inference mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.aot_behaviours.observation import arguments, check, leaves, succeeds, values

pytestmark = pytest.mark.beside_eager

BOTH = pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])


def autocast(dtype: torch.dtype, device: str = "cpu") -> Callable[[], AbstractContextManager[Any]]:
    """Autocast to this type, once for each call."""
    return lambda: torch.autocast(device, dtype)


def mixed(x: Tensor, y: Tensor) -> tuple[Tensor]:
    """A product in low precision of what need not have one type, and a softmax in high precision."""
    return (torch.einsum("ah,th->t", x, y).log_softmax(-1),)


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_arguments_of_two_types(dtype: torch.dtype, grad: bool) -> None:
    """Under autocast a single and a half precision argument are multiplied."""
    x = values(1, 16, dtype=torch.float32, grad=grad)
    y = values(5, 16, dtype=torch.float16, grad=grad)
    assert succeeds(check(mixed, arguments(x, y), around=autocast(dtype)))


@BOTH
@pytest.mark.gpu
def test_autocast_around_arguments_of_two_types_on_cuda(grad: bool) -> None:
    """The same on a CUDA device."""
    x = values(1, 256, dtype=torch.float32).cuda().requires_grad_(grad)
    y = values(30, 256, dtype=torch.float16).cuda().requires_grad_(grad)
    assert succeeds(check(mixed, arguments(x, y), around=autocast(torch.float16, "cuda")))


@BOTH
def test_autocast_switched_off_inside(grad: bool) -> None:
    """A region without autocast inside one with it: full precision there, in forward and backward."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", enabled=False):
            exact = x @ y
        return exact, x @ y

    x, y = (values(4, 4, dtype=torch.float32, grad=grad) for _ in range(2))
    assert succeeds(check(function, arguments(x, y), around=autocast(torch.bfloat16)))


class Doubling(torch.autograd.Function):
    """Multiplies in the forward and, by what it saved, in the backward; each under the autocast that is on then."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """x @ x."""
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Another product of the same tensor, so that its type shows in the gradient."""
        (x,) = ctx.saved_tensors
        gradient: Tensor = grad.float() + (x @ x).float() / 3
        return gradient


@pytest.mark.parametrize("enabled_inside", [False, True])
def test_own_backward_runs_under_the_autocast_of_the_backward(enabled_inside: bool) -> None:
    """The backward of an own function runs without autocast if `backward()` is called without, whatever it was before.

    That is eager's way; PyTorch's compiler has a setting for it whose value "off" is this.
    """

    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled_inside):
            return Doubling.apply(x)  # type: ignore[no-any-return,no-untyped-call]

    x = (values(4, 4, dtype=torch.float32) / 3).requires_grad_()
    assert succeeds(check(function, arguments(x), around=autocast(torch.bfloat16)))


def test_change_of_autocast_is_no_reuse() -> None:
    """With, without, and with autocast of another type again: the types of the outputs follow."""

    def function(x: Tensor) -> Tensor:
        return x @ x

    jitted = sg.jit(function, executors=["torch"])
    x = values(4, 4, dtype=torch.float32)
    for dtype in (torch.bfloat16, None, torch.float16, torch.bfloat16, None):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            found, expected = jitted(x), function(x)
        assert found.dtype == expected.dtype == (dtype or torch.float32)
        assert torch.equal(found, expected)


def test_grad_mode_around() -> None:
    """Without grad mode around there is no history, with it there is; and again from the cache."""

    def function(x: Tensor) -> Tensor:
        return x * 2

    jitted = sg.jit(function, executors=["torch"])
    for enabled in (False, True, False, True):
        x = values(3, grad=True)
        with torch.set_grad_enabled(enabled):
            y = jitted(x)
        assert (y.grad_fn is not None) is y.requires_grad is enabled
        if enabled:
            y.sum().backward()
            assert x.grad is not None
            assert torch.equal(x.grad, torch.full_like(x, 2))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_mode_around_results_views_and_the_input(mode: Callable[[], AbstractContextManager[Any]]) -> None:
    """A result, a view of a result, a view of the input and the input itself, under each grad mode."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        result = x * 2
        return result, result.view(-1), x.view(-1), x

    assert succeeds(check(function, leaves((3, 3)), leaves((3, 3), grad=False), around=mode))
