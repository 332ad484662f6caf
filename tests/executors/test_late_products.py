"""Late products: which products move to their first reader, and that nobody can tell but by the memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear_torch import late_products as late
from tests.core.training import backward, forward, leaf, lines
from tests.oracle import assert_trains_as_eager

ROWS, WIDTH, INNER = 32, 8, 64


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "SMALLEST", 0)


def mlp(x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, first, first_bias)), second, second_bias).square().mean()


def arguments() -> list[Tensor]:
    return [leaf(ROWS, WIDTH), leaf(INNER, WIDTH), leaf(INNER), leaf(WIDTH, INNER), leaf(WIDTH)]


def shapes_of_products(trace: sg.Trace) -> list[tuple[Any, ...]]:
    return [item.output.shape for item in lines(trace) if "mm" in item.symbol.name]


def test_the_gradient_of_an_input_waits_for_that_of_the_weight() -> None:
    """What the weight's gradient reads, saved, is let go first."""
    found = shapes_of_products(backward(assert_trains_as_eager(mlp, *arguments())))
    assert found[:2] == [(WIDTH, INNER), (ROWS, INNER)]
    early = sg.jit(mlp, executors=["torch"], passes=["-late_products"])
    early(*arguments()).backward()
    assert shapes_of_products(backward(early))[:2] == [(ROWS, INNER), (WIDTH, INNER)]


def test_what_is_small_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "SMALLEST", 1 << 16)
    found = shapes_of_products(backward(assert_trains_as_eager(mlp, *arguments())))
    assert found[:2] == [(ROWS, INNER), (WIDTH, INNER)]


def crossing(write: bool) -> Any:
    """A product that is read at the end, with another in between, and perhaps a write to what it reads."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        y = y * 1
        product = torch.mm(x, y)
        if write:
            y.mul_(2)
        other = torch.addmm(z, x, y).relu().sum()
        return product.detach().sum() + other

    return function


@pytest.mark.parametrize(("write", "names"), [(False, ["addmm", ".mm"]), (True, [".mm", "addmm"])])
def test_a_forward(write: bool, names: list[str]) -> None:
    jitted = assert_trains_as_eager(crossing(write), leaf(4, 4), leaf(4, 64), leaf(4, 64))
    found = [item.symbol.name for item in lines(forward(jitted))]
    places = [next(at for at, name in enumerate(found) if wanted in name) for wanted in names]
    assert places == sorted(places), found


def test_not_where_as_much_is_held() -> None:
    """What the product is made of would be held in its place."""

    def function(x: Tensor) -> Tensor:
        base = x.sin()
        product = torch.mm(base, base)
        return product.detach().sum() + x.cos().sum()

    jitted = assert_trains_as_eager(function, leaf(8, 8))
    found = [item.symbol.name for item in lines(forward(jitted))]
    assert found.index("aten.mm.default") < next(at for at, name in enumerate(found) if "cos" in name), found


def test_symbolic_sizes_are_left() -> None:
    jitted = sg.jit(mlp, executors=["torch"], dynamic=True)
    for rows in (ROWS, ROWS + 1):
        made = [leaf(rows, WIDTH), *arguments()[1:]]
        assert torch.equal(jitted(*made), mlp(*made))
