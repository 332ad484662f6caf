"""Answers of abstract base classes about other classes: they are asked for again once a class was registered."""

from __future__ import annotations

import abc
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear_python_state.class_checks import ClassChecks

X = torch.ones(2)


class Counting(abc.ABCMeta):
    """Counts how often a class is asked."""

    asked = 0

    def __subclasscheck__(cls, subclass: type) -> bool:
        Counting.asked += 1
        return super().__subclasscheck__(subclass)


def register_one() -> None:
    class Base(abc.ABC):  # noqa: B024
        """A base."""

    Base.register(int)


def test_classes_are_asked_once_after_each_registration() -> None:
    class Base(metaclass=Counting):
        """A base."""

    checks = ClassChecks()
    checks.read("_abc_subclasscheck", {"cls": Base, "subclass": int})
    assert checks == {(int, Base): False}
    Counting.asked = 0
    for asked in (1, 2):
        for _ in range(3):
            assert checks.stay()
            assert Counting.asked == asked
        register_one()
    Base.register(int)
    assert not checks.stay()
    assert not checks.stay()


@pytest.mark.parametrize("is_instance", [False, True])
def test_a_class_that_is_registered_is_seen(is_instance: bool) -> None:
    class Base(abc.ABC):  # noqa: B024
        """A base."""

    class Own:
        """Is registered later."""

    value: Any = Own()

    def function(x: torch.Tensor) -> torch.Tensor:
        known = isinstance(value, Base) if is_instance else issubclass(Own, Base)
        return x * 2 if known else x * 3

    jitted = sg.jit(function, executors=["torch"], strict=True)
    for _ in range(3):
        assert torch.equal(jitted(X), X * 3)
        register_one()
    assert sg.cache_info(jitted).misses == 1
    Base.register(Own)
    for _ in range(2):
        assert torch.equal(jitted(X), X * 2)
    assert sg.cache_info(jitted).misses == 2
