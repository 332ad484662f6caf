"""Linear layers: one call for a transposition and the product that reads it, with eager's bits and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import switchgear as sg
from tests.core.against_eager import numbers
from tests.core.training import forward
from tests.oracle import assert_trains_as_eager

T = torch.Tensor
LINEAR = "torch.nn.functional.linear("


def layers(bias: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3, bias=bias), nn.Tanh(), nn.Linear(3, 2, bias=bias))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_layers_are_eagers_to_the_bit(dtype: torch.dtype, bias: bool, grad: bool) -> None:
    model = layers(bias).to(dtype)
    jitted = sg.jit(model, executors=["torch"])
    x = torch.randn(5, 4).to(dtype)
    with torch.set_grad_enabled(grad):
        assert torch.equal(jitted(x), model(x))
    text = sg.last_traces(jitted)[-1].python()
    assert text.count(LINEAR) == 2
    assert "torch.t(" not in text


@pytest.mark.parametrize("bias", [False, True])
def test_layers_train_as_in_eager(bias: bool) -> None:
    weight, row = numbers(3, 4, grad=True), numbers(3, grad=True)
    added = (row,) if bias else ()
    jitted = assert_trains_as_eager(
        lambda x, w, *b: nn.functional.linear(x, w, *b).sin(), numbers(5, 4), weight, *added
    )
    assert LINEAR in str(forward(jitted))


OTHERS: dict[str, Callable[[T, T], Any]] = {
    "a transposition that is read twice": lambda x, w: (lambda t: (x @ t, x.sin() @ t))(w.t()),
    "one that is returned": lambda x, w: (lambda t: (x @ t, t))(w.t()),
    "the first factor": lambda x, w: w.t() @ x[:3],
    "a bias of two dimensions": lambda x, w: torch.addmm(x[:, :3], x, w.t()),
    "a factor": lambda x, w: torch.addmm(x[0, :3], x, w.t(), beta=2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_as_they_are(name: str) -> None:
    function = OTHERS[name]
    x, weight = numbers(5, 4), numbers(3, 4)
    jitted = sg.jit(function, executors=["torch"])
    found, expected = jitted(x, weight), function(x, weight)
    pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    assert all(torch.equal(one, two) for one, two in pairs)
    assert LINEAR not in str(forward(jitted))


def test_a_weight_written_to_in_between_is_read_as_in_eager() -> None:
    def function(x: T, w: T) -> T:
        own = w.clone()
        turned = own.t()
        own.mul_(2)
        return x @ turned

    x, weight = numbers(5, 4), numbers(3, 4)
    assert torch.equal(sg.jit(function, executors=["torch"])(x, weight), function(x, weight))


def test_the_choices_of_both_are_told() -> None:
    jitted = sg.jit(layers(True), executors=["torch"])
    with torch.no_grad():
        jitted(torch.randn(5, 4))
    assert [choice.symbol for choice in sg.last_choices(jitted)].count("aten.t.default") == 2
