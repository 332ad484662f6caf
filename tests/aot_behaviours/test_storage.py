"""Inputs that get another tensor's memory by `set_`, or more or less memory of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._inductor  # defines the operator that resizes a storage
from torch import Tensor

import switchgear as sg
from tests.aot_behaviours.observation import Inputs, Make, check, leaves, succeeds, values
from tests.oracle import fallbacks_recorded

pytestmark = pytest.mark.beside_eager

#: What is as good as eager's result: a trace holds values, and no memory to hand over.
OTHER_MEMORY = "inputs keep their memory"
BOTH = pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])


def set_to(x: Tensor, source: Tensor) -> None:
    x.set_(source)  # type: ignore[call-overload]  # the stubs know storages only


def kept(*shapes: tuple[int, ...], grad: bool = True) -> Make:
    """Results as arguments, and of each an alias that is held outside: it keeps the memory that the argument had."""

    def make() -> Inputs:
        made = tuple(values(*shape, grad=grad) for shape in shapes)
        args = tuple(leaf + 1 for leaf in made)
        return Inputs((*made, *(argument.detach() for argument in args)), args)

    return make


@BOTH
def test_set_to_a_fresh_tensor(grad: bool) -> None:
    """An input is set to a tensor that the function makes: it holds that tensor's memory afterwards."""

    def function(x: Tensor) -> Tensor:
        fresh = torch.arange(9, dtype=x.dtype).reshape(3, 3)
        with torch.no_grad():
            set_to(x, fresh)
        return x * fresh

    assert succeeds(check(function, kept((3, 3), grad=grad), refusable=OTHER_MEMORY))


def test_set_takes_over_a_chain_of_views() -> None:
    """A result is set to a view of another result; a write to it reaches the other."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        one, other = x.mul(2), y.mul(2)
        window = other[1].view(3, 3)
        set_to(one, window)
        one.view(-1).mul_(2)
        return one * window

    assert succeeds(check(function, leaves((3, 3), (3, 9), grad=False)))


@BOTH
def test_set_to_another_input_that_is_then_written(grad: bool) -> None:
    """After `x.set_(y)` a write to `y` is seen through both, and both still share memory after the call."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            set_to(x, y)
            y.mul_(2)
        return x + y

    assert succeeds(check(function, kept((3, 3), (3, 3), grad=grad), refusable=OTHER_MEMORY))


def test_set_and_a_write_through_the_old_view() -> None:
    """A view of the input, made before `set_`, is written to: it no longer belongs to any input."""

    def function(x: Tensor) -> Tensor:
        view = x.view(-1)
        fresh = torch.ones(3, 3, dtype=x.dtype, requires_grad=True)
        with torch.no_grad():
            set_to(x, fresh)
            view.mul_(2)
        return x + fresh

    check(function, kept((3, 3)), refusable="cannot mutate tensors with frozen storage")


def test_set_and_a_write_that_autograd_sees() -> None:
    """After `x.set_(y)` under `no_grad`, a tracked write to `x`."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            set_to(x, y)
        x.mul_(2)
        return x + y

    check(function, kept((3, 3), (3, 3)), refusable="the input has other mutations that cannot be kept")


@BOTH
def test_set_that_is_undone(grad: bool) -> None:
    """Set to another memory and back: the input has not changed."""

    def function(x: Tensor) -> Tensor:
        fresh = torch.arange(9, dtype=x.dtype)
        old = torch.ops.aten.alias.default(x)
        with torch.no_grad():
            set_to(x, fresh)
            set_to(x, old)
        return x + fresh.reshape(3, 3)

    assert succeeds(check(function, kept((3, 3), grad=grad), refusable=OTHER_MEMORY))


# --- memory freed and allocated; each in a process of its own, which a write to freed memory may end ---


def grown_and_filled() -> None:
    def function(x: Tensor) -> Tensor:
        torch.ops.inductor.resize_storage_bytes_(x, 64)
        with torch.no_grad():
            x.copy_(torch.ones(8))
        return x + 1

    def make() -> Inputs:
        x = values(8, grad=True)
        x.untyped_storage().resize_(0)
        return Inputs((), (x,))

    assert succeeds(check(function, make, refusable=OTHER_MEMORY))


def dropped() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        torch.ops.inductor.resize_storage_bytes_(x, 0)
        return y

    expected = values(8).sin()
    jitted = sg.jit(function, executors=["torch"])
    for _ in range(2):
        x = values(8, grad=True)
        with fallbacks_recorded():
            result = jitted(x)
        assert torch.equal(result, expected)
        assert x.untyped_storage().nbytes() == 0


def dropped_and_then_set() -> None:
    def function(x: Tensor) -> None:
        with torch.no_grad():
            torch.ops.inductor.resize_storage_bytes_(x, 0)
            set_to(x, torch.ones(2, dtype=x.dtype))

    def make() -> Inputs:
        return Inputs((), (values(8, grad=True),))

    assert succeeds(check(function, make, refusable=OTHER_MEMORY))


@pytest.mark.parametrize("case", [grown_and_filled, dropped, dropped_and_then_set])
def test_storage_that_is_resized(case: Callable[[], None]) -> None:
    """An input without memory gets some and is filled; a used input's memory is freed; freed, and `set_` after it."""
    code = f"from tests.aot_behaviours import test_storage; test_storage.{case.__name__}()"
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
