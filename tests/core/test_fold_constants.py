"""Constant folding: what is computed once, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear_simplify import constants as folding
from tests.core.against_eager import check, numbers
from tests.core.training import backward, executor, forward, leaf, operators
from tests.oracle import assert_trains_as_eager


def computed(function: Callable[..., Any], *args: Any) -> list[str]:
    """What runs for arguments that require no grad; results are eager's, on every call."""
    check(function, *args, gradient=False)
    jitted = sg.jit(function, executors=["torch"])
    jitted(*args)
    return operators(forward(jitted))


def causal(x: Tensor) -> Tensor:
    size = x.shape[-1]
    keep = torch.arange(size).view(1, -1) <= torch.arange(size).view(-1, 1)
    return x + torch.where(keep, 0.0, float("-inf")).to(x.dtype)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (causal, ["torch.add"]),
        (lambda x: x * torch.ones(3, 3).tril(), ["torch.mul"]),
        (lambda x: x * torch.full((3,), 2.0).cumsum(0)[None].expand(3, 3), ["torch.mul"]),
        (lambda x: x * torch.ones_like(x).triu(), ["torch.mul"]),
        (lambda x: x * x.new_full((3, 3), 2.5).exp(), ["torch.mul"]),
        (lambda x: x * torch.tensor([1.0, 2.0, 4.0]).log(), ["torch.mul"]),
        (lambda x: x[torch.arange(2), torch.arange(2) + 1], ["torch.Tensor.__getitem__"]),
        (lambda x: x * torch.rand(3), ["torch.rand", "torch.mul"]),
        (lambda x: x * torch.randperm(3), ["torch.randperm", "torch.mul"]),
        (lambda x: x * torch.empty(3, 3).fill_(2), None),
        (lambda x: x * (x - x), ["torch.sub", "torch.mul"]),
    ],
)
def test_what_depends_on_shapes_alone_is_computed_once(function: Callable[..., Any], left: list[str] | None) -> None:
    found = computed(function, numbers(3, 3))
    assert left is None or found == left


def test_constants_stand_in_the_trace() -> None:
    jitted = sg.jit(causal, executors=["torch"])
    jitted(numbers(3, 3))
    (value,) = forward(jitted).tensors.values()
    assert torch.equal(value, torch.full((3, 3), float("-inf"), dtype=torch.float64).triu(1))
    assert ": constant tensor [3, 3] torch.float64" in str(forward(jitted))


def test_equal_constants_are_one() -> None:
    jitted = sg.jit(lambda x: causal(causal(x)), executors=["torch"])
    jitted(numbers(3, 3))
    assert len(forward(jitted).tensors) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.arange(3),
        lambda x: (torch.arange(3), torch.arange(3)),
        lambda x: torch.ones(3, 3).tril()[1:],
        lambda x: (x, torch.arange(6).view(2, 3).t()),
        lambda x: torch.zeros_like(x),
    ],
)
def test_what_comes_out_is_new_on_every_call(function: Callable[..., Any]) -> None:
    """The caller may write to it."""
    # once: a constant that is returned is written to by the caller of one call, and read by the next
    check(function, numbers(3), gradient=False)
    jitted = sg.jit(function, executors=["torch"])
    for tensor in torch.utils._pytree.tree_leaves(jitted(numbers(3))):
        tensor.fill_(77)
    assert not any((t == 77).any() for t in torch.utils._pytree.tree_leaves(jitted(numbers(3))))


def test_what_is_written_is_computed_on_every_call() -> None:
    def function(x: Tensor) -> Tensor:
        counter = torch.zeros(3)
        counter += x
        return counter

    check(function, numbers(3, dtype=torch.float32), gradient=False)


def test_an_input_that_gets_a_constant() -> None:
    def function(x: Tensor) -> Tensor:
        x.copy_(torch.arange(3) * 2)
        return x * torch.arange(3)

    check(function, numbers(3), gradient=False)


def test_gradients_flow_past_constants() -> None:
    jitted = assert_trains_as_eager(lambda x: F.softmax(causal(x), -1), leaf(4, 4))
    found = [*operators(forward(jitted)), *operators(backward(jitted))]
    assert not [name for name in found if "arange" in name or "where" in name or "le" in name.split(".")]


def test_a_gradient_that_is_a_constant_is_new_on_every_call() -> None:
    jitted = sg.jit(lambda x: (x * torch.ones(3).cumsum(0)).sum(), executors=["torch"])
    gradients = []
    for _ in range(2):
        x = leaf(3)
        (gradient,) = torch.autograd.grad(jitted(x), x)
        gradients.append(gradient.clone())
        gradient.fill_(77)
    assert torch.equal(*gradients)


def test_a_leaf_that_requires_grad_is_no_constant() -> None:
    def function(x: Tensor) -> Tensor:
        w = torch.ones(3, dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad((w * w * x).sum(), w)
        return found

    assert torch.equal(sg.jit(function, executors=["torch"])(numbers(3)), function(numbers(3)))


def test_nothing_large_is_held() -> None:
    side = int(folding.LARGEST**0.5) + 1
    jitted = sg.jit(lambda x: x + torch.ones(side, side, dtype=torch.uint8).tril().sum(), executors=["torch"])
    jitted(numbers(1))
    assert not forward(jitted).tensors
    many = folding.IN_ALL // folding.LARGEST + 2

    def function(x: Tensor) -> Tensor:
        for number in range(many):
            x = x + torch.full((folding.LARGEST,), number, dtype=torch.uint8).view(-1, 1)[:1]
        return x

    jitted = sg.jit(function, executors=["torch"])
    jitted(numbers(1))
    held = {value.untyped_storage().data_ptr(): value for value in forward(jitted).tensors.values()}
    assert sum(value.untyped_storage().nbytes() for value in held.values()) <= folding.IN_ALL
    assert "torch.full" in operators(forward(jitted))


def test_a_view_of_little_does_not_hold_much() -> None:
    jitted = sg.jit(lambda x: x + torch.ones(100, 100)[:1, :1], executors=["torch"])
    jitted(numbers(1))
    assert [tuple(value.shape) for value in forward(jitted).tensors.values()] == [(1, 1)]


def test_under_inference_mode() -> None:
    jitted = sg.jit(causal, executors=["torch"])
    with torch.inference_mode():
        jitted(numbers(3, 3))
    assert not any(value.is_inference() for value in forward(jitted).tensors.values())


def test_under_another_default_dtype_and_device() -> None:
    jitted = sg.jit(lambda x: x * torch.ones(3).cumsum(0), executors=["torch"])
    single = jitted(numbers(3, dtype=torch.float32))
    torch.set_default_dtype(torch.float64)
    try:
        double = jitted(numbers(3, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    with torch.device("meta"):
        assert sg.jit(lambda: torch.ones(3).tril() if False else torch.ones(3) * 2)().device.type == "meta"


def test_an_executor_is_asked_about_what_is_left() -> None:
    seen = executor("seen", {torch.mul: lambda x, y: torch.ops.aten.mul.Tensor(x, y)})
    jitted = sg.jit(lambda x: x * torch.ones(3).cumsum(0), executors=[seen, "torch"])
    assert torch.equal(jitted(torch.ones(3)), torch.tensor([1.0, 2.0, 3.0]))
    assert {choice.owner for choice in sg.last_choices(jitted)} == {"seen"}


def test_second_gradients_with_constants() -> None:
    x = leaf(4, 4)

    def second(function: Callable[[Tensor], Tensor]) -> Tensor:
        (first,) = torch.autograd.grad(F.softmax(function(x), -1).pow(2).sum(), x, create_graph=True)
        (found,) = torch.autograd.grad(first.pow(2).sum(), x)
        return found

    assert torch.equal(second(sg.jit(causal, executors=["torch"])), second(causal))
