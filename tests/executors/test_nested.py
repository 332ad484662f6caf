"""Nested calls: which are one, and that values, strides and dtypes stay eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.core.against_eager import numbers
from tests.core.training import forward, leaf, operators
from tests.oracle import assert_trains_as_eager


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (lambda x: x.view(12).view(4, 3).view(-1, 2).exp(), 1),
        (lambda x: x.exp().view(12).view(4, 3) * 2, 1),
        (lambda x: x.t().view(4, 3, 1).view(2, 2, 3).exp(), 2),  # not in order
        (lambda x: x.view(torch.int32).view(torch.float32).view(12).exp(), 3),
        (lambda x: x.exp().view(12).view(x.dtype).sum(0), 1),
        (lambda x: (lambda y: y.view(4, 3).exp() + y.sum())(x.view(12)), 2),  # read elsewhere
        (lambda x: x.view(12).view(4, 3), 0),  # by the epilogue
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_views_of_views(function: Callable[..., Any], calls: int, grad: bool) -> None:
    x = leaf(3, 4).detach().float()
    if grad and calls != 3:
        ran = operators(forward(assert_trains_as_eager(function, leaf(3, 4))))
    else:
        jitted = sg.jit(function, executors=["torch"])
        assert torch.equal(jitted(x), function(x))
        ran = operators(sg.last_traces(jitted)[-1])
    assert sum(name in ("torch.Tensor.view", "aten.view.default", "aten.view.dtype") for name in ran) == calls


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (lambda x, y: torch.cat([torch.cat([x, y], 0), x], 0), 1),
        (lambda x, y: torch.cat([x, torch.cat([y, torch.cat([x, y])]), y], -2), 1),
        (lambda x, y: torch.cat([torch.cat([x, y], 1), torch.cat([y, x], -1)], 0), 3),  # along another dimension
        (lambda x, y: (lambda z: torch.cat([z, x]) + z.sum())(torch.cat([x, y])), 2),  # read elsewhere
        (lambda x, y: (lambda z: torch.cat([z, z]))(torch.cat([x, y])), 2),
        (lambda x, y: (lambda z: (torch.cat([z, x]), z))(torch.cat([x, y])), 2),  # returned
        (lambda x, y: torch.cat([torch.cat([x.half(), y.half()]), x]), 2),  # a dtype that another gives
        (lambda x, y: torch.cat([torch.cat([x.t(), y.t()], 1), y.t()], 1), 2),  # another order in memory
        (lambda x, y: torch.cat([torch.cat([x.new_empty(0), x], -2), y], -2), 1),
    ],
)
def test_concatenations_of_concatenations(function: Callable[..., Any], calls: int) -> None:
    x, y = numbers(2, 3), numbers(2, 3)
    jitted = sg.jit(function, executors=["torch"])
    expected, given = function(x, y), jitted(x, y)
    for one, other in zip(expected, given, strict=True) if isinstance(expected, tuple) else [(expected, given)]:
        assert torch.equal(one, other)
        assert one.stride() == other.stride()
        assert one.dtype == other.dtype
    assert operators(sg.last_traces(jitted)[-1]).count("torch.cat") == calls


def test_parts_that_are_written_to_stay_as_they_were() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        first = torch.cat([x, y])
        y.zero_()
        return torch.cat([first, y])

    x, y, given = numbers(2, 3), numbers(2, 3), numbers(2, 3)
    given.copy_(y)
    assert torch.equal(sg.jit(function, executors=["torch"])(x, given), function(x, y))
    assert torch.equal(given, y)
