"""The tests of a plugin, one for each thing that it registers: `switchgear test NAME`."""

from __future__ import annotations

from collections.abc import Callable


def test_plugin(switchgear_check: Callable[[], None]) -> None:
    """One implementation or grad rule beside PyTorch; the parameter's id says which."""
    switchgear_check()
