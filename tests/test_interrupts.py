"""Interrupts, forks and the end of the process leave nothing of a capture; `python -m tests.interrupts` has more."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import switchgear as sg
from switchgear_core.patches import changes, replaced, together
from switchgear_core.record.attempts import undoing
from tests import interrupts
from tests.core.made_up import Meeting
from tests.falling_back import fallback_told


class Holder:
    value = 1


def test_an_interrupt_of_a_first_call_at_any_instruction_leaves_nothing() -> None:
    assert interrupts.run(40, 0, ["arithmetic", "refused"]) == []


def test_an_interrupt_while_a_change_is_undone_is_followed_by_another_attempt() -> None:
    """Of two attempts one is interrupted, at each instruction in turn."""

    @undoing
    def changed() -> None:
        with together([replaced(Holder, "value", 2), replaced(Holder, "value", 3)]):
            pass

    count = 0
    while interrupted_at(count, changed):
        assert Holder.value == 1
        assert changes() == []
        count += 1
    assert count > 20


def test_capture_leaves_the_import_function_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's C++ calls it, and does not check for the error that an interrupt raises in a function of Python."""
    names: list[str] = []
    initialise = replaced.__init__

    def note(self: replaced, holder: object, name: str, value: object) -> None:
        names.append(name)
        initialise(self, holder, name, value)

    monkeypatch.setattr(replaced, "__init__", note)
    with fallback_told("nothing named it beforehand"):  # for it runs `note`
        sg.jit(lambda x: x + 1, executors=["torch"], fallback="eager")(torch.ones(2))
    assert "_find_and_load" in names
    assert "__import__" not in names


def interrupted_at(event: int, function: Callable[[], None]) -> bool:
    """Interrupt a call at that event. False where it has fewer."""
    injection = interrupts.Injection(event)
    try:
        sys.setprofile(injection.profile)
        try:
            function()
        finally:
            sys.setprofile(None)
    except KeyboardInterrupt:
        pass
    return " interrupted_at " not in injection.where


def test_an_interrupt_comes_out_as_one_where_pytorch_fails_to_clean_up_after_it() -> None:
    @undoing
    def failing() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            [].pop()

    with pytest.raises(KeyboardInterrupt):
        failing()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_child_of_a_fork_captures_though_another_thread_was_capturing() -> None:
    meeting = Meeting()

    class Waiting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            meeting.wait()
            return x + 1

    thread = threading.Thread(target=lambda: sg.jit(Waiting(), executors=["torch"])(torch.ones(2)))
    original = nn.Module.__getattr__
    thread.start()
    try:
        meeting.begin()
        child = os.fork()
        if child == 0:
            is_restored = nn.Module.__getattr__ is original
            result = sg.jit(torch.cos, executors=["torch"])(torch.zeros(2))
            os._exit(0 if is_restored and result.tolist() == [1, 1] else 1)
        deadline = time.monotonic() + 60
        while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.05)
        if status == (0, 0):
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert status == (child, 0)
    finally:
        meeting.end()
        thread.join()


#: As `dill` does where it is installed, it has the main module outlive the others.
SCRIPT = """
import sys, torch, switchgear as sg
sys.kept = sys.modules["__main__"]
module = torch.nn.Linear(4, 4)
jitted = sg.jit(lambda x: module(x).sum(), executors=["torch"])
jitted(torch.randn(2, 4))
"""


def test_a_script_ends_without_a_word(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
