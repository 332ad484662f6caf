"""Functions among the arguments that are made anew for each call: compiled once for their code and what they hold."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import switchgear as sg

X = torch.linspace(-1, 1, 4)
Function = Callable[..., Any]


def calls_it(function: Function) -> Any:
    return function(X) * 2


def calls_two(one: Function, two: Function) -> Any:
    one(X)
    return two(X)


def names_it(function: Function) -> Any:
    return function(X) * len(function.__name__)


def finds_it(function: Function) -> Any:
    return X * TABLE.get(function, 1)


def holds_it(box: Any) -> Any:
    return box.function(X)


def maps_it(function: Function) -> Any:
    return torch.vmap(function)(X)


def checkpoints_it(function: Function) -> Any:
    return checkpoint(function, X, use_reentrant=False)


def marks(function: Function) -> Any:
    return X * getattr(function, "mark", 1)


class Applied(torch.autograd.Function):
    """Takes a function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Function) -> Any:
        ctx.function = function
        return function(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.function(grad), None


def applies_it(function: Function) -> Any:
    return Applied.apply(X, function)  # type: ignore[no-untyped-call]


def scaled(factor: Any) -> Function:
    return lambda x: x * factor


def with_default(factor: Any) -> Function:
    return lambda x, factor=factor: x * factor


def composed(factor: Any) -> Function:
    inner = scaled(factor)
    return lambda x: inner(x) + 1


def wrapped(name: str) -> Function:
    def shift(x: Tensor) -> Tensor:
        return x + 1

    shift.__name__ = name

    @functools.wraps(shift)
    def run(x: Tensor) -> Any:
        return shift(x) * 2

    return run


def counting() -> Function:
    count = 0

    def run(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x * count

    return run


def counting_and_read() -> tuple[Function, Function]:
    count = 0

    def run(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x

    return run, lambda x: x * count


def remembering(factor: int) -> Function:
    @functools.lru_cache
    def power(number: int) -> int:
        return int(number**factor)

    return lambda x: x * power(2)


def marked(mark: int) -> Function:
    def run(x: Tensor) -> Tensor:
        return x

    if mark:
        run.mark = mark  # type: ignore[attr-defined]
    return run


KNOWN = scaled(3)
TABLE: dict[Function, int] = {KNOWN: 5}
TENSORS = [torch.ones(4), torch.full((4,), 2.0), torch.full((4,), 3.0)]


@pytest.mark.parametrize(
    ("function", "arguments", "entries"),
    [
        (calls_it, [(scaled(0.5),), (scaled(0.5),), (scaled(0.25),), (KNOWN,)], 3),
        (calls_it, [(scaled(tensor),) for tensor in TENSORS], 1),
        (calls_it, [(with_default(tensor),) for tensor in TENSORS], 1),
        (calls_it, [(scaled(number),) for number in (2, 3, 4, 5)], 2),
        (calls_it, [(composed(tensor),) for tensor in TENSORS], 1),
        (calls_it, [(torch.func.vmap(one),) for one in (torch.sin, torch.cos, torch.sin)], 3),
        (names_it, [(wrapped(name),) for name in ("one", "three", "one")], 2),
        (names_it, [(torch.relu,), (scaled(0.5),)], 2),
        (finds_it, [(KNOWN,), (scaled(3),), (KNOWN,)], 2),
        (finds_it, [(scaled(3),), (KNOWN,), (scaled(3),)], 2),
        (holds_it, [(SimpleNamespace(function=scaled(tensor)),) for tensor in TENSORS], 1),
        (maps_it, [(scaled(0.5),), (scaled(0.5),), (scaled(0.25),)], 2),
        (checkpoints_it, [(scaled(tensor),) for tensor in TENSORS], 1),
        (applies_it, [(scaled(0.5),), (scaled(0.25),), (scaled(0.5),)], 2),
        (calls_it, [(functools.partial(scaled(0.5)),), (functools.partial(torch.sin),)], 2),
        (calls_it, [(remembering(number),) for number in (1, 1, 2)], 2),
        (marks, [(marked(number),) for number in (0, 3, 0, 4, 3)], 3),
        (calls_two, [(scaled(0.5), scaled(0.5)), (KNOWN, KNOWN), (scaled(0.5), scaled(0.25))], 3),
    ],
)
def test_functions(function: Function, arguments: list[tuple[Any, ...]], entries: int) -> None:
    jitted = sg.jit(function, executors=["torch"])
    for call in arguments:
        assert torch.equal(jitted(*call), function(*call))
    info = sg.cache_info(jitted)
    assert (info.fallbacks, info.entries) == (0, entries), info.reasons


@pytest.mark.parametrize("first", [0, 1])
def test_what_functions_change(first: int) -> None:
    def separate() -> tuple[Function, Function]:
        return counting_and_read()[0], counting_and_read()[1]

    def results(run: Function) -> list[Any]:
        made = [counting_and_read, separate] * 2
        return [run(*make()) for make in made[first:]]

    jitted: Function = sg.jit(calls_two, executors=["torch"])
    assert all(map(torch.equal, results(jitted), results(calls_two)))
    jitted, (one, two) = sg.jit(calls_it, executors=["torch"]), (counting(), counting())
    for _ in range(4):
        assert torch.equal(jitted(one), calls_it(two))


def test_a_function_that_shares_a_variable_with_the_jitted_one() -> None:
    count = 0

    def advance(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x

    def run(function: Function) -> Any:
        return function(X) * count

    jitted = sg.jit(run, executors=["torch"])
    for function in (counting(), advance, counting(), advance):
        before = count
        expected = run(function) if function is advance else X * before
        count = before
        if function is advance:
            assert torch.equal(jitted(function), expected)
        else:
            jitted(function)


def test_gradients() -> None:
    weight = torch.ones(4, requires_grad=True)
    jitted = sg.jit(calls_it, executors=["torch"])
    for _ in range(2):
        (found,) = torch.autograd.grad(jitted(scaled(weight)).sum(), weight)
        assert torch.equal(found, X * 2)
    assert sg.cache_info(jitted).hits == 1


def test_they_are_let_go() -> None:
    jitted = sg.jit(calls_it, executors=["torch"])
    alive: list[weakref.ref[Any]] = []
    for _ in range(3):
        tensor = torch.ones(4)
        function = composed(tensor)
        alive += [weakref.ref(function), weakref.ref(tensor)]
        jitted(function)
    del function, tensor
    gc.collect()
    assert [one() for one in alive] == [None] * 6
