"""Backward code that writes in place, `detach_()` and `requires_grad_()`: as in eager, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.aot_behaviours.observation import check, leaves, succeeds
from tests.falling_back import falls_back

VECTORS = leaves((3,), (3,), grad=(True, False))


class Counting(torch.autograd.Function):
    """Multiplies the gradient by a tensor that it keeps, and adds one to that tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.y = y
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        found = grad * ctx.y
        ctx.y.add_(1)
        return found, None


class KeepsTwice(Counting):
    """Reads a saved tensor after it wrote to it under another name."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        ctx.y = y
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (saved,) = ctx.saved_tensors
        ctx.y.add_(1)
        return grad * saved, None


class KeepsView(KeepsTwice):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y[:2])
        ctx.y = y
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.y.add_(1)
        return grad * ctx.saved_tensors[0].sum(), None


def count(x: Tensor, y: Tensor) -> Tensor:
    return Counting.apply(x, y)  # type: ignore[no-any-return,no-untyped-call]


def kept_result(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = y * 2
    return count(x, z), z


def view_of_kept_result(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = y * 2
    return count(x, z), z[1:]


def written_before(x: Tensor, y: Tensor) -> Tensor:
    y.mul_(2)
    return count(x, y)


def kept_twice(x: Tensor, y: Tensor) -> Tensor:
    return KeepsTwice.apply(x, y)  # type: ignore[no-any-return,no-untyped-call]


@pytest.mark.parametrize("function", [count, written_before, kept_twice])
def test_written_after_the_backward(function: Callable[..., Any]) -> None:
    """The tensor that the backward writes to: an argument, one written before, one kept twice."""
    assert succeeds(check(function, VECTORS))


@pytest.mark.parametrize("function", [kept_result, view_of_kept_result])
def test_result_written_after_the_backward(function: Callable[..., Any]) -> None:
    """The same for a result that comes out too, or a view of it."""

    def after(called: Callable[..., Any]) -> tuple[Tensor, Tensor]:
        x, y = VECTORS().args
        found, kept = called(x, y)
        before = kept.clone()
        found.sum().backward()
        assert torch.equal(kept, before + 1)
        assert x.grad is not None
        return kept, x.grad

    for one, other in zip(after(function), after(sg.jit(function, executors=["torch"])), strict=True):
        assert torch.equal(one, other)


def written_after(x: Tensor, y: Tensor) -> Tensor:
    found = count(x, y)
    y.mul_(2)
    return found


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (lambda x, y: count(x, y) + count(x, y), "another line of the backward reads"),
    (lambda x, y: count(x, y.view(-1)), "a view of an argument"),
    (lambda x, y: KeepsView.apply(x, y), "several tensors of the same memory"),  # type: ignore[no-untyped-call]
    (written_after, "has overwritten since"),
    (lambda x, y: sg.grad(lambda x: count(x, y).sum())(x), "computed inside"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_refused_writes_of_a_backward(function: Callable[..., Any], message: str) -> None:
    with falls_back(message):
        sg.jit(function, executors=["torch"])(*VECTORS().args)


def test_second_order_of_a_backward_that_writes_is_refused() -> None:
    x, y = VECTORS().args
    with falls_back("differentiated"):
        torch.autograd.grad(sg.jit(count, executors=["torch"])(x, y).sum(), x, create_graph=True)


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
    (resized, "untyped_storage inside a jitted function"),
    (assigned, "gives t_1 other memory"),
    (new_leaf_returned, "told inside to require grad"),
]


@pytest.mark.parametrize(("function", "message"), MEMORY)
def test_memory_of_an_input_that_cannot_be_followed(function: Callable[..., Any], message: str) -> None:
    with falls_back(message):
        sg.jit(function, executors=["torch"])(*VECTORS().args)
