"""Reads of Python's state: what each kind of read takes note of, and which changes a later call sees."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear_python_state.reads import State
from tests.in_turn import in_turn

X = torch.ones(2)
VARIABLE: ContextVar[float] = ContextVar("variable", default=2.0)


class Holder:
    """An object with attributes of its own and of its class."""

    factor = 2.0

    def __init__(self) -> None:
        self.own = 2.0
        self.items = [1.0, 2.0]
        self.names = {"a": 2.0}


def settings() -> types.ModuleType:
    module = types.ModuleType("settings")
    module.__dict__.update(a=2.0)
    return module


def fresh() -> tuple[type[Holder], Holder, types.ModuleType]:
    kind = type("Own", (Holder,), {})
    return kind, kind(), settings()


#: A function of a class, an object and a module; a change that it does not see; one that it does.
Change = Callable[[Any, Any, Any], Any]
READS: dict[str, tuple[Change, Change, Change]] = {
    "an attribute": (
        *(lambda kind, one, module: one.own, lambda kind, one, module: setattr(one, "other", 3.0)),
        lambda kind, one, module: setattr(one, "own", 3.0),
    ),
    "an attribute of the class": (
        *(lambda kind, one, module: one.factor, lambda kind, one, module: setattr(one, "own", 3.0)),
        lambda kind, one, module: setattr(kind, "factor", 3.0),
    ),
    "an attribute that hides the class's": (
        *(lambda kind, one, module: one.factor, lambda kind, one, module: one.items.append(3.0)),
        lambda kind, one, module: setattr(one, "factor", 3.0),
    ),
    "an attribute that is missing": (
        *(lambda kind, one, module: getattr(one, "more", 2.0), lambda kind, one, module: setattr(one, "own", 3.0)),
        lambda kind, one, module: setattr(one, "more", 3.0),
    ),
    "the names of an object": (
        *(lambda kind, one, module: len(vars(one)), lambda kind, one, module: setattr(one, "own", 2.0)),
        lambda kind, one, module: setattr(one, "more", 3.0),
    ),
    "an element": (
        *(lambda kind, one, module: one.items[1], lambda kind, one, module: setattr(one, "own", 3.0)),
        lambda kind, one, module: one.items.__setitem__(1, 3.0),
    ),
    "an item": (
        *(lambda kind, one, module: one.names["a"], lambda kind, one, module: setattr(one, "own", 3.0)),
        lambda kind, one, module: one.names.update(a=3.0),
    ),
    "a variable of a module": (
        *(lambda kind, one, module: module.a, lambda kind, one, module: setattr(module, "c", 3.0)),
        lambda kind, one, module: setattr(module, "a", 3.0),
    ),
    "the names of a module": (
        *(lambda kind, one, module: 2.0 + ("b" in vars(module)), lambda kind, one, module: setattr(module, "a", 2.0)),
        lambda kind, one, module: setattr(module, "b", 3.0),
    ),
    "a name that a class lacks": (
        *(lambda kind, one, module: 2.0 + hasattr(kind, "more"), lambda kind, one, module: setattr(one, "own", 3.0)),
        lambda kind, one, module: setattr(kind, "more", 3.0),
    ),
    "a variable of the context": (
        *(lambda kind, one, module: VARIABLE.get(), lambda kind, one, module: VARIABLE.set(2.0)),
        lambda kind, one, module: VARIABLE.set(3.0),
    ),
}


@in_turn(name=READS)
def test_changes_that_matter_are_seen_and_no_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, unseen, seen = READS[name]
    kind, one, module = fresh()
    VARIABLE.set(2.0)

    def function(x: torch.Tensor) -> Any:
        return x * read(kind, one, module)

    jitted = sg.jit(function, executors=["torch"], strict=True)
    for _ in range(2):
        for _ in range(3):
            assert torch.equal(jitted(X), function(X))
        with monkeypatch.context() as patch:  # the tree alone is asked
            patch.setattr(State, "refresh", lambda *call: False)
            jitted(X)
        assert sg.cache_info(jitted).misses == 1
        unseen(kind, one, module)
    before = function(X)
    seen(kind, one, module)
    for _ in range(2):
        assert torch.equal(jitted(X), function(X))
    assert not torch.equal(function(X), before)
    assert sg.cache_info(jitted).misses == 2
