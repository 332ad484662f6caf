"""Short chains: which calls are left out, and that results stay eager's to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from tests.core.against_eager import numbers
from tests.core.training import backward, forward, leaf, operators
from tests.oracle import assert_trains_as_eager


def ran_forward(function: Callable[..., Any], *args: Any) -> list[str]:
    return operators(forward(assert_trains_as_eager(function, *args)))


def ran_backward(function: Callable[..., Any], *args: Any) -> list[str]:
    return operators(backward(assert_trains_as_eager(function, *args)))


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (lambda x: x.t().t().exp(), ["aten.exp.default"]),
        (lambda x: x.t().t().t().exp(), ["aten.t.default", "aten.exp.default"]),
        (lambda x: x.view(12).view(3, 4).exp(), ["aten.exp.default"]),
        (lambda x: x.view(12).view(4, 3).exp(), ["aten.view.default", "aten.exp.default"]),
        (lambda x: x[1:][:1].exp() * x[:2][1:].exp(), None),  # the same part, by two ways from the same value
        (lambda x: x.as_strided((12,), (1,), 0).as_strided((3, 4), (4, 1), 0).exp(), None),
    ],
)
def test_views_of_views(function: Callable[..., Any], calls: list[str] | None) -> None:
    ran = ran_forward(function, leaf(3, 4))
    if calls is None:
        assert sum(name in ("aten.slice.Tensor", "aten.as_strided.default") for name in ran) in (2, 4)
    else:
        assert ran == calls


def test_an_input_in_other_strides_is_another_layout() -> None:
    jitted = sg.jit(lambda x: x.t().t().exp(), executors=["torch"])
    x = numbers(3, 4)
    for given in (x, x.t(), x[:, ::2], x[1:]):
        assert torch.equal(jitted(given), given.exp())


def test_gradients_of_linear_layers() -> None:
    names = ran_backward(lambda x, w, b: F.relu(F.linear(x, w, b)), leaf(5, 4), leaf(3, 4), leaf(3))
    assert names.count("aten.t.default") == 1
    assert names.count("aten.mm.default") == 2
    assert not {"aten.view.default", "aten.detach.default"} & {*names}


def test_gradients_that_are_one_value() -> None:
    assert ran_backward(lambda x, y: (x.t().t() + y.t().t()) * 2, leaf(3, 4), leaf(3, 4)).count("aten.t.default") <= 2


def test_a_grad_output_is_not_given_out_as_a_gradient_of_another_layout() -> None:
    x = numbers(3, 4, grad=True)
    grad = numbers(4, 3)
    (found,) = torch.autograd.grad(sg.jit(lambda x: x.t(), executors=["torch"])(x), x, grad)
    assert torch.equal(found, grad.t())


SUMS = [
    (shape, dims)
    for shape in ((4, 6), (1, 5), (2, 3, 4))
    for n in (1, 2)
    for dims in itertools.combinations(range(len(shape)), n)
]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("shape", "dims"), SUMS)
def test_sums_that_a_view_follows(shape: tuple[int, ...], dims: tuple[int, ...], transposed: bool) -> None:
    kept = [size for dim, size in enumerate(shape) if dim not in dims]
    x = (
        leaf(*shape)
        if not transposed
        else leaf(*reversed(shape)).detach().permute(*reversed(range(len(shape)))).requires_grad_()
    )
    names = ran_forward(lambda x: x.sum(dims, keepdim=True).view(kept).exp(), x)
    assert names == ["aten.sum.dim_IntList", "aten.exp.default"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (lambda y: y.view(4).exp() + y)(x.sum((0,), keepdim=True)),  # read as it is, too
        lambda x: x.sum((0,), keepdim=True).view(2, 2).exp(),
        lambda x: x.sum((0,)).view(1, 4).exp(),
        lambda x: x.sum((0,), keepdim=True),
    ],
)
def test_other_sums_stay(function: Callable[..., Any]) -> None:
    names = ran_forward(function, leaf(3, 4))
    assert "aten.sum.dim_IntList" in names
    assert ("aten.view.default" in names) == (names != ["aten.sum.dim_IntList"])


def test_a_sum_that_a_view_of_a_view_stands_for_is_read_more_than_once() -> None:
    def function(x: Tensor) -> Tensor:
        total = x.sum((0,), keepdim=True)
        wide = total.unsqueeze(0)
        return wide.view(1, 4).view(4).exp() + wide

    ran_forward(function, leaf(3, 4))


def test_a_dropped_dimension_that_comes_back() -> None:
    def function(x: Tensor) -> Tensor:
        return x.sum((0,), keepdim=True).view(4).view(1, 4).exp() + x

    names = ran_forward(function, leaf(3, 4))
    assert names == ["aten.sum.dim_IntList", "aten.view.default", "aten.exp.default", "aten.add.Tensor"]


def test_symbolic_sizes_are_left_alone() -> None:
    jitted = sg.jit(lambda x: x.t().t().exp(), executors=["torch"], dynamic=True)
    for size in (3, 5):
        x = numbers(size, 4, grad=True)
        y = jitted(x)
        y.sum().backward()
        assert torch.equal(y, x.exp())
        assert torch.equal(x.grad, y)  # type: ignore[arg-type]
