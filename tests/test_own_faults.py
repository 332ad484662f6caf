"""What fails in Switchgear itself is told once as its fault, and the original runs; errors of others stay theirs."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import switchgear as sg
from switchgear import errors
from switchgear_core.passes import pipeline
from tests.falling_back import falls_back

FAULT = "Switchgear itself fails, with "


class Odd(tuple[int, ...]):
    def __len__(self) -> int:
        raise NotImplementedError("no length")


class Points(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.points = [Odd((1, 2)), Odd((3, 4))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for point in self.points:
            x = x * point[0]
        return x


def nested(depth: int, value: object) -> object:
    for _ in range(depth):
        value = (value,)
    return value


def unnested(value: Any) -> Any:
    while isinstance(value, tuple):
        (value,) = value
    return value


def convolution(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.conv2d(x.to(torch.cfloat)[None, None].conj(), torch.ones(1, 1, 2, 2, dtype=torch.cfloat))


FAULTS: dict[str, tuple[Callable[..., Any], tuple[object, ...], str]] = {
    "a pass of ours": (lambda x, n: x.long() + n, (2**63,), ".*ValueError: Overflow"),
    "printing": (lambda x: nested(250, x + 1), (), "SyntaxError: too many nested"),
    "an argument of many digits": (lambda x, n: x + n % 7, (10**5000,), "ValueError: Exceeds the limit"),
    "a derived rule": (convolution, (), "NotDifferentiable: no gradient for .*"),
}


@pytest.mark.parametrize("fallback", ["split", "eager"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_ours_is_told_once_and_counted_and_the_original_runs(name: str, fallback: Any) -> None:
    function, more, what = FAULTS[name]
    x = torch.ones(3, 3, requires_grad=True)
    expected = unnested(function(x, *more))
    jitted = sg.jit(function, executors=["torch"], fallback=fallback)
    with falls_back(what if "NotDifferentiable" in what else f"{FAULT}{what}"):
        result = unnested(jitted(x, *more))
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    assert torch.equal(unnested(jitted(x, *more)), expected)  # warnings are errors
    assert "2 of 2 calls (100%) ran in eager" in str(sg.explain(jitted))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_ours_is_an_error_where_that_is_asked_for(name: str) -> None:
    function, more, what = FAULTS[name]
    jitted = sg.jit(function, executors=["torch"], fallback="error")
    with pytest.raises(errors.SwitchgearError, match=what.rpartition(": ")[2]):
        jitted(torch.ones(3, 3, requires_grad=True), *more)


def test_a_fault_in_a_backward_is_raised_as_ours_and_later_calls_run_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = vars(pipeline)["claim"]

    def failing(trace: Any, *more: Any, **options: Any) -> Any:
        if trace.name == "backward":
            raise ZeroDivisionError
        return claim(trace, *more, **options)

    monkeypatch.setattr(pipeline, "claim", failing)
    jitted, x = sg.jit(lambda x: x.sin().sin(), executors=["torch"]), torch.zeros(3, requires_grad=True)
    result = jitted(x * 1)
    with pytest.raises(errors.Unsupported, match=r"itself fails, with ZeroDivisionError.*Later calls"):
        result.sum().backward()
    with falls_back(f"{FAULT}ZeroDivisionError"):
        jitted(x * 1).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.ones(3))


def test_what_a_method_of_the_users_raises_in_a_guard_is_not_raised_by_the_call(recwarn: Any) -> None:
    assert torch.equal(sg.jit(Points(), executors=["torch"])(torch.ones(2)), torch.full((2,), 3.0))


def test_the_original_draws_what_it_had_drawn_alone_where_capture_fails() -> None:
    def drawing(x: torch.Tensor, n: int) -> tuple[torch.Tensor, object]:
        return x.long() + n, (random.random(), numpy.random.rand())

    def seeded(function: Callable[..., Any]) -> Any:
        random.seed(0)
        numpy.random.seed(0)
        return function(torch.ones(2), 2**63)[1]

    jitted = sg.jit(drawing, executors=["torch"])
    with falls_back():
        drawn = seeded(jitted)
    assert drawn == seeded(drawing)


def test_an_error_of_the_function_is_the_functions_and_draws_what_it_had_drawn_alone() -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise KeyError(random.random())

    def error(function: Callable[..., Any]) -> str:
        random.seed(0)
        with pytest.raises(KeyError) as caught:
            function(torch.ones(2))
        return str(caught.value)

    assert error(sg.jit(failing, executors=["torch"])) == error(failing)


def test_a_call_that_raises_holds_its_arguments_no_longer_than_eager() -> None:
    jitted = sg.jit(lambda x, n: x * 2 if n else [][0], executors=["torch"])
    for n in (1, 2, 3):  # PyTorch's own imports, for symbolic sizes, keep frames
        jitted(torch.ones(2), n)
    x = torch.ones(2)
    reference = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(IndexError):
            jitted(x, 0)
        del x
        assert reference() is None
    finally:
        gc.enable()
