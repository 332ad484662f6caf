"""Backward code that writes in place, `detach_()` and `requires_grad_()`: as in eager, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from switchgear.errors import Unsupported
from tests.aot_behaviours.observation import check, leaves, succeeds
from tests.falling_back import assert_falls_back, falls_back

VECTORS = leaves((3,), (3,), grad=(True, False))


class Counting(torch.autograd.Function):
    """Multiplies the gradient by a tensor that it keeps, and adds one to that tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        found = grad * y
        y.add_(1)
        return found, None


class MultipliesInPlace(torch.autograd.Function):
    """Doubles the gradient in the memory that it arrives in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.mul_(2)


def count(x: Tensor, y: Tensor) -> Tensor:
    return Counting.apply(x, y)  # type: ignore[no-any-return,no-untyped-call]


def kept_result(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = y * 2
    return count(x, z), z


def doubled(x: Tensor, y: Tensor) -> Tensor:
    return MultipliesInPlace.apply(x * y)  # type: ignore[no-any-return,no-untyped-call]


WRITING = [count, kept_result, doubled]


@pytest.mark.parametrize("function", WRITING)
def test_backward_that_writes(function: Callable[..., Any]) -> None:
    """It writes to an argument, a result, or the gradient that arrives: all of it is eager's."""
    assert_falls_back(function, lambda: VECTORS().args, "test_backward_writes.py.*writes in place.*write to a clone")


def test_gradient_inside_of_a_backward_that_writes() -> None:
    function = sg.jit(lambda x, y: sg.grad(lambda x: count(x, y).sum())(x) + y, executors=["torch"], strict=True)
    with pytest.raises(Unsupported, match="writes in place"):
        function(*VECTORS().args)


def test_written_after_the_backward() -> None:
    x, y = VECTORS().args
    before = y.clone()
    with falls_back("writes in place"):
        jitted = sg.jit(count, executors=["torch"])(x, y)
    jitted.sum().backward()
    assert torch.equal(y, before + 1)


def detached(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * 2
    z.detach_()
    return z * x, z


def detached_and_on_again(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.detach_()
    z.requires_grad_()
    return z * x


@pytest.mark.parametrize("function", [detached, detached_and_on_again])
def test_detached_in_place(function: Callable[..., Any]) -> None:
    """A result that drops its history: nothing flows back through it."""
    assert succeeds(check(function, VECTORS))


def switched_on(x: Tensor, y: Tensor) -> Tensor:
    y.requires_grad_()
    return x * y


def switched_on_and_written(x: Tensor, y: Tensor) -> Tensor:
    y.requires_grad_()
    with torch.no_grad():
        y.mul_(2)
    return x * y


def asked_and_switched_on(x: Tensor, y: Tensor) -> tuple[bool, Tensor]:
    return y.requires_grad, switched_on(x, y)


@pytest.mark.parametrize("function", [switched_on, switched_on_and_written, asked_and_switched_on])
def test_input_switched_on(function: Callable[..., Any]) -> None:
    """An input requires grad from the call on."""
    assert succeeds(check(function, VECTORS))


def read_and_switched_on(x: Tensor, y: Tensor) -> Tensor:
    return y * 3 + switched_on(x, y)


def test_input_switched_on_after_it_was_read_is_refused() -> None:
    with falls_back("requires_grad=True"):
        sg.jit(read_and_switched_on, executors=["torch"])(*VECTORS().args)


def resized(x: Tensor, y: Tensor) -> Tensor:
    y.untyped_storage().resize_(0)
    return x * 2


def assigned(x: Tensor, y: Tensor) -> Tensor:
    y.data = y.data * 2
    return x * y


def new_leaf_returned(x: Tensor, y: Tensor) -> Tensor:
    return y.detach().requires_grad_().view(-1)


MEMORY: list[tuple[Callable[..., Any], str]] = [
    (resized, "untyped_storage asks for the data or the memory"),
    (assigned, "gives t_1 other memory"),
    (new_leaf_returned, "returns a view of t_1"),
]


@pytest.mark.parametrize(("function", "message"), MEMORY)
def test_memory_of_an_input_that_cannot_be_followed(function: Callable[..., Any], message: str) -> None:
    with falls_back(message):
        sg.jit(function, executors=["torch"])(*VECTORS().args)
