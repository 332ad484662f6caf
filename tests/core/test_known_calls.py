"""Functions written in C: those that capture knows are called, any other makes the function fall back."""

from __future__ import annotations

import collections
import cProfile
import functools
import math
import os
import sys
import time
from collections.abc import Callable
from os import getcwd as where
from time import monotonic
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.falling_back import falls_back
from tests.in_turn import in_turn

TABLE = {"clock": time.perf_counter}


class Clock:
    """Holds a function."""

    tick = staticmethod(time.time)


def _caught(x: Tensor) -> Tensor:
    try:
        return x * time.time()
    except Exception:
        sys.getrefcount(x)
        return x


FALL_BACK: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "imported by its name": (lambda x: x * (monotonic() > 0), "asks what time it is"),
    "under another name": (lambda x: x * len(where()), "asks the file system"),
    "of a class": (lambda x: x * (Clock.tick() > 0), "asks what time it is"),
    "in a dict": (lambda x: x * (TABLE["clock"]() > 0), "asks what time it is"),
    "by a computed name": (lambda x: x * (getattr(time, "ti" + "me")() > 0), "asks what time it is"),
    "handed to map": (lambda x: x * len([*map(print, ())]), "hands on print, which prints"),
    "handed on as an attribute": (lambda x: x * len([*map(time.localtime, ())]), "hands on time.localtime"),
    "in a partial": (lambda x: x * (functools.partial(os.getpid)() > 0), "hands on os.getpid, which calls"),
    "unknown": (lambda x: x * (sys.getrefcount(x) > 0), "calls sys.getrefcount, which is written in C and not known"),
    "by the standard library": (lambda x: x * os.path.exists("/"), "asks the file system"),
    "after one that was caught": (_caught, "calls sys.getrefcount"),
}


@in_turn(name=FALL_BACK)
def test_a_function_that_is_not_known_falls_back(name: str) -> None:
    function, why = FALL_BACK[name]
    with falls_back(why):
        sg.jit(function, executors=["torch"])(torch.ones(2))


KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "numbers": lambda x: x * math.sqrt(abs(-4)) * max([1, 2]),
    "containers": lambda x: x * collections.Counter("aab").most_common(1)[0][1],
    "texts": lambda x: x * len("ab".upper()) * "ab".startswith("a"),
    "handed on": lambda x: x * sum(map(abs, [-1, 2])),
    "classes": lambda x: x * isinstance(x, Tensor) * len(type("Made", (), {"a": 1}).__mro__),
    "a branch that is not taken": lambda x: x * time.time() if x.dim() > 9 else x * 2,
}


@in_turn(name=KNOWN)
def test_a_function_that_is_known_is_compiled(name: str) -> None:
    function, x = KNOWN[name], torch.ones(2)
    jitted = sg.jit(function, executors=["torch"], strict=True)
    for _ in range(2):
        assert torch.equal(jitted(x), function(x))
    assert sg.cache_info(jitted).hits == 1


def test_nothing_runs_that_is_refused_later() -> None:
    printed: list[str] = []

    def function(x: Tensor) -> Tensor:
        try:
            time.sleep(0)
        except Exception:  # capture refuses, eager does not raise
            sys.stdout.write("again\n")
        printed.append("once")
        return x

    with falls_back("uses a file or a stream"):
        sg.jit(function, executors=["torch"])(torch.ones(2))
    assert printed == ["once"]


def test_a_backward_of_the_users_is_watched() -> None:
    class Prints(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            print(end="")
            return grad * 2

    with falls_back("prints"):
        sg.jit(
            lambda x: Prints.apply(x),  # type: ignore[no-untyped-call]
            executors=["torch"],
        )(torch.ones(2, requires_grad=True))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="from Python 3.12 on nothing is paused")
def test_a_profiler_is_paused_while_a_function_is_captured() -> None:
    profiler = cProfile.Profile()
    jitted = sg.jit(lambda x: x * math.sqrt(4), executors=["torch"], strict=True)
    profiler.enable()
    try:
        jitted(torch.ones(2))
        assert sys.getprofile() is not None
        math.floor(2.5)
    finally:
        profiler.disable()
    profiler.create_stats()
    assert any("floor" in key[2] for key in profiler.stats)
