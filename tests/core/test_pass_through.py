"""Calls that return an argument: none is run, and what comes out is eager's, each tensor its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.core.training import forward, operators
from tests.falling_back import assert_falls_back
from tests.oracle import assert_same


def matrix(requires_grad: bool = True) -> Tensor:
    return torch.arange(6.0).reshape(2, 3).clone().requires_grad_(requires_grad)


def step(w: Tensor) -> None:
    with torch.no_grad():
        w.mul_(0.5)
        w.sub_(w.cos())


def step_that_returns(w: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        new = w.sin()
        w.copy_(new)
    return new, w.detach()


def step_from_an_input(w: Tensor) -> Tensor:
    with torch.no_grad():
        w.copy_(w.t().reshape(2, 3))
    return w


@pytest.mark.parametrize("function", [step, step_that_returns, step_from_an_input])
def test_write_that_autograd_does_not_see(function: Callable[[Tensor], object]) -> None:
    jitted = sg.jit(function, executors=["torch"])
    w, expected = matrix(), matrix()
    for _ in range(3):
        version = w._version
        assert_same(jitted(w), function(expected))
        assert_same(w, expected)
        assert w._version > version
    assert "switchgear.set_value" not in operators(forward(jitted))


def test_what_is_returned_shares_no_memory_with_what_was_written() -> None:
    w = matrix()
    new, view = sg.jit(step_that_returns, executors=["torch"])(w)
    new.zero_()
    assert w.detach().any()
    view.zero_()
    assert not w.detach().any()


def test_hidden_write_to_what_is_no_input_falls_back() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        y.data.mul_(2.0)
        return (y * y).cos()

    assert_falls_back(function, lambda: (matrix(),), "written to where autograd does not see it")


def test_composite_takes_the_path_of_what_required_grad() -> None:
    # the value that the layer norm reads was written under no_grad, and requires grad all the same
    def function(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            w.mul_(2.0)
        return torch.layer_norm(w, (3,)).detach() + x

    jitted = sg.jit(function, executors=["torch"])
    assert_same(jitted(matrix(False), matrix()), function(matrix(False), matrix()))
    assert "torch.layer_norm" not in operators(forward(jitted))
