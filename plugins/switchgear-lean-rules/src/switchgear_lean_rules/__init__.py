"""Gradient rules that save masks in place of values: the hooks."""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

from .pattern import PASS
from .rules import table


@sg.hookimpl
def switchgear_register_grad_rules(registry: sg.Registry) -> None:
    """Install the rules."""
    table.install_grad_rules(registry)


@sg.hookimpl
def switchgear_passes() -> Sequence[sg.PassPlacement]:
    """The pattern."""
    return [PASS]
