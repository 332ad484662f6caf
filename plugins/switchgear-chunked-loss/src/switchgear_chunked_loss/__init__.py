"""Linear layer and cross entropy without the logits: the hooks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import switchgear as sg
from switchgear.testing import Sample

from .operators import linear_cross_entropy, linear_cross_entropy_and_sums
from .pattern import PASS
from .rules import table

__all__ = ["linear_cross_entropy"]


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """Return the executor; its priority puts it before executors that would take the logits into a region."""
    return [sg.Executor("chunked_loss", priority=10)]


@sg.hookimpl
def switchgear_register_implementations(registry: sg.executors.Registry) -> None:
    """Install the loss without gradients, for calls that need none."""
    table.install_implementations(registry)


@sg.hookimpl
def switchgear_register_grad_rules(registry: sg.executors.Registry) -> None:
    """Install the loss with its gradients."""
    table.install_grad_rules(registry)


@sg.hookimpl
def switchgear_passes() -> Sequence[sg.passes.PassPlacement]:
    """Return the pass that finds the pattern."""
    return [PASS]


@sg.hookimpl
def switchgear_samples() -> dict[object, list[Sample]]:
    """Return calls for `switchgear test chunked_loss`."""
    x, weight, bias = (torch.linspace(-1, 1, size) for size in (12, 20, 5))
    target = torch.tensor([0, 4, -100])
    operands = x.reshape(3, 4), weight.sin().reshape(5, 4)
    return {
        operator: [
            Sample(operator, (*operands, None, target, -100, 0.0, True)),
            Sample(operator, (*operands, bias, target, -100, 0.2, False)),
        ]
        for operator in (linear_cross_entropy, linear_cross_entropy_and_sums)
    }
