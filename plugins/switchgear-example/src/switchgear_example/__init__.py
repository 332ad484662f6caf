"""An example of a Switchgear plugin: the hooks. Importing this package registers nothing with Switchgear."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import switchgear as sg
from switchgear.testing import Sample

from .operators import fast_gelu, rounded
from .rules import table

__all__ = ["fast_gelu", "rounded"]


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """Return one executor. Without a user's list, `example` comes before `torch`, which declares a lower priority."""
    return [sg.Executor("example")]


@sg.hookimpl
def switchgear_register_implementations(registry: sg.executors.Registry) -> None:
    """Install the implementations."""
    table.install_implementations(registry)


@sg.hookimpl
def switchgear_register_grad_rules(registry: sg.executors.Registry) -> None:
    """Install the grad rules."""
    table.install_grad_rules(registry)


@sg.hookimpl
def switchgear_is_constant_for_vjp(bound_symbol: sg.BoundSymbol) -> bool | None:
    """Return True if a call is a constant for differentiation, as rounding is (a skip rule); None: no opinion."""
    return True if bound_symbol.symbol.name == "switchgear_example.rounded.default" else None


@sg.hookimpl
def switchgear_samples() -> dict[object, list[Sample]]:
    """Return calls for `switchgear test example`: PyTorch has none of this package's own operators."""
    x = torch.linspace(-3, 3, 12).reshape(3, 4)
    return {fast_gelu: [Sample(fast_gelu, (x,))]}
