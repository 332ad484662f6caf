"""The bar of a long compilation."""

from __future__ import annotations

import time

import pytest

import switchgear as sg
from switchgear import progress


def test_the_bar_of_one_long_item_moves_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_PAUSE", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with sg.executors.Progress(1, "inductor", is_shown=True, patience=0.0) as bar:
        end = time.monotonic() + 10
        printed = ""
        while "0/1 regions" not in printed and time.monotonic() < end:
            printed += capsys.readouterr().err
            time.sleep(0.01)
        assert "inductor [........................] 0/1 regions" in printed
        bar.after(None)
    assert "1/1 regions" in capsys.readouterr().err


def test_nothing_is_shown_in_the_first_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_PAUSE", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with sg.executors.Progress(1, "inductor", is_shown=True) as bar:
        time.sleep(0.1)
        bar.after(None)
    assert not capsys.readouterr().err
