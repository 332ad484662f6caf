"""Which modules, classes and functions are the user's, and which names code reads, as far as its text tells."""

from __future__ import annotations

import dataclasses
import functools
import queue
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from switchgear_python_state import user_objects
from tests.in_turn import in_turn


class Plain:
    """No attributes but functions."""

    def method(self) -> None:
        """Do nothing."""

    @property
    def computed(self) -> int:
        return 1


METHOD: Any = Plain.method
BROADCAST: Any = torch.broadcast_tensors


class Valued(Plain):
    """An attribute that is a value."""

    factor = 2.0


class Inherits(Valued):
    """One of a base."""


@dataclasses.dataclass
class Data:
    """Defaults of fields alone."""

    field: float = 2.0


class Dunder:
    """Names of Python's alone."""

    __marked__ = 1


@in_turn(
    kind__expected=[
        *((Plain, False), (Valued, True), (Inherits, True), (Data, False), (Dunder, False), (OrderedDict, False)),
        *((torch.nn.Linear, False), (object, False)),
    ]
)
def test_attributes_that_instances_share(kind: type, expected: bool) -> None:
    assert user_objects.has_values(kind) is expected


@in_turn(
    name__is_users__is_own=[
        *(("__main__", True, True), ("tests.in_turn", True, True), ("mine", True, True), (None, False, False)),
        *(("torch", False, False), ("torch.functional", False, False), ("torch.nn.modules.linear", True, False)),
        *(("torch.nn.modules.module", False, False), ("torch.nn.utils.rnn", True, False), ("numpy", False, False)),
        *(("switchgear", False, False), ("switchgear.jitting", False, False), ("collections.abc", False, False)),
    ]
)
def test_modules(name: str | None, is_users: bool, is_own: bool) -> None:
    assert user_objects.is_users(name) is is_users
    assert user_objects.is_users_own(name) is is_own


def test_classes_functions_and_spaces() -> None:
    assert user_objects.is_users_class(Plain)
    assert not user_objects.is_users_class(int)
    assert user_objects.is_users_space(Plain)
    assert not user_objects.is_users_space(torch.Tensor)
    assert not user_objects.is_users_space(torch)
    assert user_objects.is_users_space(types.ModuleType("mine"))
    assert user_objects.is_users_function(METHOD)
    assert not user_objects.is_users_function(BROADCAST)
    scope: dict[str, Any] = {}
    exec("def function(): pass", scope)
    assert user_objects.is_users_function(scope["function"])
    assert user_objects.is_lock(type(threading.Lock()))
    assert not user_objects.is_lock(list)
    assert user_objects.is_alive(queue.SimpleQueue)
    assert not user_objects.is_alive(dict)


def reads_names(x: Any) -> Any:
    def inner() -> Any:
        return Valued.factor + len("a_name") + x.attribute

    return inner(), "no name"


def binds_names() -> None:
    global BOUND
    BOUND = 1


BOUND = 0


def imports() -> Any:
    import os.path as place
    from collections import abc as other

    return place, other


def test_names_in_code() -> None:
    assert user_objects.names_in(reads_names.__code__) >= {"Valued", "factor", "len", "a_name", "attribute"}
    assert "no name" not in user_objects.names_in(reads_names.__code__)
    assert user_objects.globals_in(reads_names.__code__) == {"Valued", "len"}
    assert "BOUND" in user_objects.variables_in(binds_names.__code__)
    assert "BOUND" not in user_objects.globals_in(binds_names.__code__)


@in_turn(
    function__names=[
        (lambda a, b: a is b, {"a", "b"}),
        (lambda a, b: a is None, set()),
        (lambda a, b: a == b, set()),
        (lambda a, b: a.one is not b[0], {"a", "one", "b", "0"}),
        (lambda a, b: a + (b is a.one), {"b", "a", "one"}),
        (lambda a, b: (a is b, a.other), {"a", "b"}),
    ]
)
def test_names_that_are_compared_by_identity(function: Callable[..., Any], names: set[str]) -> None:
    assert user_objects.compared_by_identity(function.__code__) >= names
    assert "other" not in user_objects.compared_by_identity(function.__code__)
    assert bool(user_objects.compared_by_identity(function.__code__)) is bool(names)


class Behind:
    """Attributes that run functions."""

    plain = METHOD
    computed = Plain.computed
    of_class: Any = classmethod(METHOD)
    static = staticmethod(METHOD)
    cached = functools.cached_property(METHOD)
    value = 3


def test_functions_behind_attributes() -> None:
    behind = {name: [*user_objects.functions_behind(value)] for name, value in vars(Behind).items()}
    for name in ("plain", "of_class", "static", "cached"):
        assert behind[name] == [METHOD], name
    assert Plain.computed.fget in behind["computed"]  # type: ignore[attr-defined]
    assert behind["value"] == [3]
    assert [*user_objects.functions_behind(None)] == []
