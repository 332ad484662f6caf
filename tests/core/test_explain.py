"""The report of `sg.explain`."""

from __future__ import annotations

import pytest
import torch

import switchgear as sg
from tests.core.against_eager import numbers


class Absent(sg.Executor):
    def unavailable(self) -> str:
        return "no such device"


def test_says_once_who_was_skipped_and_names_those_alone_who_objected() -> None:
    picky = sg.Table("picky")
    picky.implementation(torch.ops.aten.sin.default, checker=lambda x: sg.Declined("not today"))(torch.sin)
    executors: list[str | sg.Executor] = [
        Absent("absent"),
        sg.Executor("picky", table=picky),
        sg.Executor("idle"),
        "torch",
    ]
    with pytest.warns(sg.errors.PluginWarning, match="absent is listed but skipped"):
        jitted = sg.jit(lambda x: x.sin().cos(), executors=executors)
    jitted(numbers(3, grad=True)).sum().backward()
    report = sg.explain(jitted).splitlines()
    assert report[:2] == ["executors: picky, idle, torch", "skipped: absent: unavailable: no such device"]
    assert "   2 x aten.sin.default: execution by torch; picky: not today" in report
    assert not any("absent" in line or "idle" in line for line in report[2:])
