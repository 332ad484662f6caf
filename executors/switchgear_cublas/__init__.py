"""The executor `cublas`: matrix products, and what cuBLASLt can do beside them in the same kernel."""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

from .executor import CublasExecutor
from .patterns import PASSES
from .rules import table

__all__ = ["CublasExecutor"]


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """The executor `cublas`, asked after `torch`, which takes everything: who wants it lists it."""
    return (CublasExecutor(),)


@sg.hookimpl
def switchgear_register_grad_rules(registry: sg.Registry) -> None:
    """The rules for the operators of this package."""
    table.install_grad_rules(registry)


@sg.hookimpl
def switchgear_passes() -> Sequence[sg.PassPlacement]:
    """The passes that put those operators in the place of others."""
    return PASSES
