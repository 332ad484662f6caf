"""Cells that are read: numbers, functions, tensors, objects, those of functions inside functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, changed, points, put, step


def _rebinding(function: Callable[..., Any], rebind: Callable[[], None], times: int = 1) -> Scenario:
    """A function whose cell is rebound between calls."""
    return changed(function, *[rebind] * times)


@case()
def number() -> Scenario:
    scale = 1.0

    def rebind() -> None:
        nonlocal scale
        scale += 1.0

    return _rebinding(lambda x: x * scale, rebind, 2)


@case()
def integer_that_indexes() -> Scenario:
    column = 0

    def rebind() -> None:
        nonlocal column
        column = 2

    return _rebinding(lambda x: x[:, column], rebind)


@case()
def function() -> Scenario:
    act: Callable[[Tensor], Tensor] = torch.relu

    def rebind() -> None:
        nonlocal act
        act = torch.tanh

    return _rebinding(lambda x: act(x) * 2, rebind)


@case()
def tensor() -> Scenario:
    weight = torch.ones(4)

    def rebind() -> None:
        nonlocal weight
        weight = torch.arange(4.0)

    return _rebinding(lambda x: x @ weight, rebind)


@case()
def module() -> Scenario:
    layer = nn.Linear(4, 2)

    def rebind() -> None:
        nonlocal layer
        layer = nn.Linear(4, 2, bias=False)

    return _rebinding(lambda x: layer(x), rebind)


@case()
def none_then_tensor() -> Scenario:
    mask: Tensor | None = None

    def masked(x: Tensor) -> Tensor:
        return x if mask is None else x * mask

    def rebind() -> None:
        nonlocal mask
        mask = torch.tensor([1.0, 0.0, 1.0, 0.0])

    return _rebinding(masked, rebind)


@case()
def function_within_a_function() -> Scenario:
    scale = 1.0

    def outer(x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            return y * scale

        return inner(x) + 1

    def rebind() -> None:
        nonlocal scale
        scale = 4.0

    return _rebinding(outer, rebind)


@case()
def cell_of_a_callee() -> Scenario:
    scale = 1.0

    def scaled(x: Tensor) -> Tensor:
        return x * scale

    def rebind() -> None:
        nonlocal scale
        scale = 4.0

    return _rebinding(lambda x: scaled(x).sum(-1), rebind)


@case()
def cell_of_a_decorated_function() -> Scenario:
    weight = {"value": 1.0}

    def weighted(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        @functools.wraps(function)
        def wrapper(x: Tensor) -> Tensor:
            return function(x) * weight["value"]

        return wrapper

    @weighted
    def loss(x: Tensor) -> Tensor:
        return x.square().mean()

    return changed(loss, lambda: weight.update(value=0.1))


@case()
def annealing_schedule() -> Scenario:
    epoch = 0

    def beta() -> float:
        return min(1.0, epoch / 2)

    def drive(call: Call) -> Steps:
        nonlocal epoch
        for number in (0, 0, 1, 1, 2, 2, 3, 3):
            epoch = number
            yield step(call, points())

    return Scenario(lambda x: x.mean() + beta() * x.square().mean(), drive)


@case()
def object_rebound() -> Scenario:
    class Options:
        scale = 1.0

    options = Options()

    def rebind() -> None:
        nonlocal options
        options = Options()
        put(options, scale=2.0)

    return _rebinding(lambda x: x * options.scale, rebind)


@case()
def bound_method() -> Scenario:
    class Loss:
        weight = 1.0

        def compute(self, x: Tensor) -> Tensor:
            return x.square().mean() * self.weight

    loss = Loss()
    return changed(loss.compute, lambda: put(loss, weight=0.5))
