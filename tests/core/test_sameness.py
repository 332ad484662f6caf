"""Which captures are served by one entry."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as changed
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear.runtime.entry import Entry
from switchgear.runtime.sameness import same_program

T = torch.Tensor


def first_row(x: T) -> T:
    x.mul_(2)
    return x[0]


def captured() -> Any:
    jitted: Any = sg.jit(first_row, executors=["torch"])
    jitted(torch.ones(2, 2))
    return jitted._switchgear.last.captured


def test_two_captures_of_one_function_are_the_same_program() -> None:
    assert same_program(captured(), captured())


@pytest.mark.parametrize("field", ["roots", "views", "mutations", "proxies", "returned"])
def test_captures_whose_calls_end_otherwise_are_not_the_same_program(field: str) -> None:
    one = captured()
    assert getattr(one.outputs, field)
    assert not same_program(one, changed(captured(), outputs=changed(one.outputs, **{field: ()})))


@dataclass
class Guard:
    """A guard that says whether it can serve another, or nothing of it."""

    answer: bool | None

    @property
    def forget(self) -> Any:
        return None if self.answer is None else lambda other, leaves: self.answer


@pytest.mark.parametrize(
    ("ours", "theirs", "serves"),
    [
        ([True], [True], True),
        ([False], [True], False),
        ([False, True], [True, True], True),
        ([None, True], [True, True], True),
        ([True], [None], False),
        ([], [], False),
    ],
)
def test_an_entry_serves_another_if_some_guard_forgets_why_not(ours: Any, theirs: Any, serves: bool) -> None:
    one, other = (SimpleNamespace(captured=SimpleNamespace(guards=[*map(Guard, flags)])) for flags in (ours, theirs))
    assert Entry.forget(one, other, []) is serves  # type: ignore[arg-type]
