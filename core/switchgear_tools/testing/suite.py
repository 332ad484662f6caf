"""The tests of a plugin, one for each thing that it registers: `switchgear test NAME`."""

from __future__ import annotations

from collections.abc import Callable


def test_plugin(switchgear_check: Callable[[], None]) -> None:
    """Compare one implementation or grad rule with PyTorch; the parameter's id names it."""
    switchgear_check()
