"""A call that fits asks the tree of guards alone: what it is made again for is slow, and is for changes."""

from __future__ import annotations

import functools
import importlib
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from switchgear_python_state.reads import State
from switchgear_runtime.last_call import last_entry

X = torch.ones(2)


class Slotted:
    """Has a slot, and what its class has."""

    __slots__ = ("number",)
    factor = 2

    def __init__(self) -> None:
        self.number = 3


class Keeping:
    """Holds what caches do."""

    kind = "a kind"

    def __init__(self) -> None:
        self.layers = [SimpleNamespace(x=X.clone(), seen=seen) for seen in (True, False)]
        self.options: dict[str, Any] = {"a": 1, "b": {"c": 2.0}}
        self.done = False

    def update(self, x: Tensor) -> Tensor:
        """Reads all of it."""
        length = len(self.layers) + self.options["b"]["c"]
        return x * self.layers[0].x * length if self.kind and not self.done else x


class Net(nn.Module):
    """Is given something."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.settings = {"scale": 2.0}

    def forward(self, x: Tensor, kept: Any = None) -> Any:
        return self.linear(kept.update(x)) * self.settings["scale"]


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "an object": (lambda x, kept: kept.update(x), lambda: (X, Keeping())),
    "two objects": (lambda x, a, b: a.update(x) + b.update(x), lambda: (X, Keeping(), Keeping())),
    "one object twice": (lambda x, a, b: a.update(x) + b.update(x), lambda: (X, *[Keeping()] * 2)),
    "a module and an object": (Net(), lambda: (X, Keeping())),
    "slots": (lambda x, a: x * a.number * a.factor, lambda: (X, Slotted())),
    "a list": (lambda x, a: (a.append(1), x * len(a))[1], lambda: (X, [1, 2])),
    "a deque in an object": (
        lambda x, a: x * a.queue[0].number,
        lambda: (X, SimpleNamespace(queue=deque([Slotted(), Slotted()]))),
    ),
    "a function": (lambda x, f: f(x), lambda: (X, lambda x, y=X: x * y)),
    "a partial": (lambda x, f: f(x), lambda: (X, functools.partial(torch.mul, other=2.0))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("in_cpp", [True, False])
def test_no_guard_is_asked_in_python(name: str, in_cpp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    function, make = CASES[name]
    if in_cpp:
        importlib.import_module("torch._dynamo")  # the tree in C++ is there from then on
        monkeypatch.setattr("switchgear_core.torch_private.guard_tree._FEW", 0)
    jitted = sg.jit(function, executors=["torch"])
    for _ in range(3):
        jitted(*make())

    def refuse(state: State, *objects: Any) -> bool:
        raise AssertionError(f"{name}: {state.why((*make(),))}")

    monkeypatch.setattr(State, "refresh", refuse)
    assert torch.equal(jitted(*make()), function(*make()))


def test_an_attribute_of_a_module_among_many_reads() -> None:
    """From Python 3.13 on the version of a module's `__dict__` stays when an attribute is set."""
    importlib.import_module("torch._dynamo.guards")  # whose tree, in C++, goes by versions
    drop = nn.Dropout(0.9)
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20)), drop)
    jitted = sg.jit(module, executors=["torch"])
    for _ in range(3):
        jitted(X)
    drop.p = 0.0
    assert torch.equal(jitted(X), module(X))


def test_kinds_of_calls_share_one_guard_on_what_they_read() -> None:
    holder = SimpleNamespace(number=2)
    jitted = sg.jit(
        lambda x: (holder.number, x * (holder.number if len(x) == 2 else 1))[1], executors=["torch"], dynamic=False
    )
    inputs = [torch.ones(rows) for rows in (2, 3)]
    states = set()
    for x in inputs:
        jitted(x)
        states |= {guard.scope["state"] for guard in last_entry(jitted).captured.guards if "state" in guard.scope}
    assert len(states) == 1
    holder.number = 5
    for x in reversed(inputs):
        assert torch.equal(jitted(x), x * (5 if len(x) == 2 else 1))


class Numbers:
    """Has more attributes than dicts have items that are looked into."""

    def __init__(self) -> None:
        self.a, self.b, self.c, self.d, self.e = range(5)
        self.f, self.g, self.h, self.i, self.j = range(5)


def test_many_attributes_that_are_read_at_once() -> None:
    importlib.import_module("torch._dynamo.guards")
    holder = Numbers()
    jitted = sg.jit(lambda x: x * sum(vars(holder).values()), executors=["torch"])
    for _ in range(3):
        jitted(X)
    holder.j = 0
    assert torch.equal(jitted(X), X * 16)
