"""Programs whose results or gradients were silently wrong once: they are left to eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from tests.falling_back import assert_falls_back, falls_back


def leaf_and_result() -> tuple[Tensor, Tensor]:
    leaf = torch.linspace(-1, 2, 6).requires_grad_()
    return leaf, leaf * 1


def hidden_write_then_a_tracked_one(leaf: Tensor, x: Tensor) -> Any:
    x.data.mul_(-0.03)
    x.view(-1)[0] += 0.45
    return x


def saved_value_overwritten(leaf: Tensor, x: Tensor) -> Any:
    y = x.cos()
    x.data.mul_(0.3)
    return y


def saved_constant_overwritten(leaf: Tensor, x: Tensor) -> Any:
    constant = x.detach() + 1
    y = leaf * constant
    constant.data.mul_(0.3)
    return y


def view_under_no_grad_of_a_reshaped_argument(leaf: Tensor, x: Tensor) -> Any:
    x.unsqueeze_(0)
    with torch.no_grad():
        return x.view(-1).unsqueeze(-1)


WRONG: list[tuple[Callable[..., Any], str]] = [
    (hidden_write_then_a_tracked_one, "where autograd sees it"),
    (saved_value_overwritten, r"writes through \.data"),
    (saved_constant_overwritten, r"writes through \.data"),
    (view_under_no_grad_of_a_reshaped_argument, "other sizes in place"),
]


@pytest.mark.parametrize(("function", "match"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_falls_back(function: Callable[..., Any], match: str) -> None:
    assert_falls_back(function, leaf_and_result, match)


def test_saved_value_overwritten_before_a_gradient_inside() -> None:
    def function(x: Tensor) -> Any:
        y = x.cos()
        x.data.mul_(0.3)
        return torch.autograd.grad(y.sum(), x)

    assert_falls_back(function, lambda: (torch.linspace(-1, 2, 6).requires_grad_(),), r"writes through \.data")


def test_view_read_after_a_hidden_write_with_data_read() -> None:
    def function(x: Tensor, view: Tensor) -> Tensor:
        sine = x.sin()
        x.data.mul_(-0.76)
        mixed = torch.lerp(sine, view, 0.3)
        return mixed[(mixed.sum() * 0).long()]

    def call(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        leaf, x = leaf_and_result()
        result = function(x, x.view(6))
        return result.detach(), x.detach(), *torch.autograd.grad(result, leaf)

    expected = call(function)
    with falls_back():
        found = call(sg.jit(function, executors=["torch"], specialize_on_data=True))
    assert all(map(torch.equal, found, expected))


def test_hidden_writes_of_a_training_step_are_compiled() -> None:
    """Nothing that comes out has a backward that could read what was overwritten."""

    def step(weight: Tensor, x: Tensor) -> Tensor:
        loss = (x @ weight).square().sum()
        (grad,) = torch.autograd.grad(loss, weight)
        weight.data.sub_(grad, alpha=0.1)
        return loss.detach()

    jitted, x = sg.jit(step, executors=["torch"], strict=True), torch.linspace(0, 1, 6).view(2, 3)
    ours, eagers = (torch.linspace(-1, 1, 6).view(3, 2).clone().requires_grad_() for _ in range(2))
    for _ in range(2):
        assert torch.equal(jitted(ours, x), step(eagers, x))
        assert torch.equal(ours, eagers)


@pytest.mark.filterwarnings("ignore::switchgear.errors.RecompileWarning")
def test_a_list_that_every_call_finds_longer() -> None:
    log, logged = list[int](), list[int]()

    def function(x: Tensor, log: list[int]) -> Tensor:
        log.append(1)
        return x * 2 if len(log) > 12 else x

    x = torch.ones(3)
    jitted = sg.jit(lambda x: function(x, log), executors=["torch"])
    for _ in range(15):
        assert torch.equal(jitted(x), function(x, logged))
        assert log == logged


@pytest.mark.parametrize(
    "function",
    [
        F.softplus,
        F.hardsigmoid,
        F.hardswish,
        F.hardtanh,
        F.elu,
        lambda x: torch.logit(x, 0.1),
        lambda x: F.mse_loss(x, torch.zeros(2, 3, 4), reduction="none"),
    ],
)
def test_strides_of_gradients_of_transposed_values(function: Callable[[Tensor], Tensor]) -> None:
    linear = torch.nn.Linear(4, 4)

    def whole(x: Tensor) -> Tensor:
        return function(linear(x)).transpose(1, 2)

    x = torch.rand(2, 3, 4).requires_grad_()
    jitted = sg.jit(whole, executors=["torch"], fallback="error")
    weights = torch.arange(24.0).reshape(2, 4, 3)
    leaves = x, *linear.parameters()
    expected, found = (torch.autograd.grad((run(x) * weights).sum(), leaves) for run in (whole, jitted))
    assert all(map(torch.equal, expected, found))


def test_a_scripted_function_inside() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted: Any = torch.jit.script(_scaled)
    jitted = sg.jit(lambda x: scripted(x, 3) + 1, executors=["torch"], fallback="error")
    x = torch.rand(2, 3).requires_grad_()
    assert torch.equal(jitted(x), scripted(x, 3) + 1)


def _scaled(x: torch.Tensor, factor: int) -> torch.Tensor:
    return x * torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * factor)
