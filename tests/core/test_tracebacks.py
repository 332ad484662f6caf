"""Errors of the user's own show the user's frames, as in eager, and none of ours."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import switchgear as sg
from switchgear import errors

X = torch.ones(4)


def inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    c = a * 2
    return c @ b


def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return inner(a, b).sum()


class Row(nn.Module):
    def forward(self, x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return x.sin()[row].sum()


class Nested(nn.Module):
    """Calls through a module, a lambda and a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.row = Row()

    def forward(self, x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        first, second = ((lambda one: self.row(one, row))(one) for one in (x, x + 1))
        total: torch.Tensor = first + second
        return total


def frames(call: Callable[[], object]) -> list[tuple[str, str, int | None]]:
    """File, function and line of each frame of the error that a call raises, below that of the test."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - any
        call()
    found = [(one.filename, one.name, one.lineno) for one in traceback.extract_tb(raised.tb)]
    return [one for one in found if "site-packages" not in one[0]][2:]


def test_an_error_while_capturing_has_the_frames_of_eager() -> None:
    args = torch.ones(2, 3), torch.ones(2, 3)
    assert frames(lambda: sg.jit(loss, executors=["torch"])(*args)) == frames(lambda: loss(*args))


def test_an_error_while_running_has_the_frames_of_eager() -> None:
    args = torch.ones(2, 3), torch.ones(3, 2, dtype=torch.int64)
    assert frames(lambda: sg.jit(loss, executors=["torch"])(*args)) == frames(lambda: loss(*args))


@pytest.mark.parametrize("kind", [Row, Nested], ids=lambda kind: kind.__name__)
def test_an_error_of_a_later_call_of_a_module_has_the_frames_of_eager(kind: type[nn.Module]) -> None:
    module = kind()
    jitted = sg.jit(module, executors=["torch"])
    jitted(X, torch.tensor([1]))
    ours = frames(lambda: jitted(X, torch.tensor([9])))
    assert ours == frames(lambda: module(X, torch.tensor([9])))


def test_a_refusal_ends_in_the_line_that_is_refused() -> None:
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    def strictly() -> Any:
        return sg.jit(branches, executors=["torch"], strict=True)(X)

    assert frames(strictly)[-1][:2] == (__file__, "branches")


def test_a_refusal_shows_no_error_of_stand_ins() -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    with pytest.raises(errors.DataDependent) as raised:
        sg.jit(reads, executors=["torch"], strict=True)(X)
    shown = "".join(traceback.format_exception(raised.value))
    assert "During handling" not in shown
    assert "fake_tensor" not in shown


def test_causes_have_none_of_our_frames_either() -> None:
    table = sg.Table("mine")

    @table.implementation(torch.sin)
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise OSError("no driver")

    with pytest.raises(sg.errors.ExecutorFailed) as raised:
        sg.jit(torch.sin, executors=[sg.Executor("mine", table=table), "torch"])(X)
    assert raised.value.__cause__ is not None
    for error in (raised.value, raised.value.__cause__):
        assert not [one for one in traceback.extract_tb(error.__traceback__) if "/switchgear/" in one.filename]


def test_a_variable_shows_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHGEAR_FULL_TRACEBACK", "1")
    args = torch.ones(2, 3), torch.ones(3, 2, dtype=torch.int64)
    assert any("<switchgear " in file for file, _, _ in frames(lambda: sg.jit(loss, executors=["torch"])(*args)))
