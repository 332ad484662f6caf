"""RMSNorm, RoPE, SwiGLU and cross entropy as Triton kernels: the hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

import switchgear as sg
from switchgear.testing import Sample

from . import operators
from .executor import TritonExecutor
from .patterns import PASSES
from .rules import table

__all__ = ["TritonExecutor"]


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """Return the executor; its priority puts it before the fusion executors, which would compete for the same calls."""
    return [TritonExecutor("triton", priority=5)]


@sg.hookimpl
def switchgear_register_implementations(registry: sg.executors.Registry) -> None:
    """Install the kernels."""
    table.install_implementations(registry)


@sg.hookimpl
def switchgear_register_grad_rules(registry: sg.executors.Registry) -> None:
    """Install the gradients of the kernels."""
    table.install_grad_rules(registry)


@sg.hookimpl
def switchgear_passes() -> Sequence[sg.passes.PassPlacement]:
    """Return the passes that find the patterns."""
    return PASSES


@sg.hookimpl
def switchgear_samples() -> dict[Any, list[Sample]]:
    """Return calls for `switchgear test triton`."""
    x, grad, weight = (torch.linspace(-2, 2, size).sin() for size in (24, 24, 6))
    rows, grad_rows = x.reshape(4, 6), grad.cos().reshape(4, 6)
    heads, angles = x.reshape(1, 2, 2, 6), torch.linspace(0, 3, 12).reshape(1, 1, 2, 6)
    turn = angles.cos(), angles.sin()
    target, sums = torch.tensor([0, 5, -100, 2]), torch.logsumexp(rows, 1)
    calls: dict[Any, list[tuple[Any, ...]]] = {
        operators.RMS_NORM: [(rows, weight, 1e-5), (rows, None, 1e-5)],
        operators.RMS_NORM_BACKWARD: [(grad_rows, rows, weight, 1e-5), (grad_rows, rows, None, 1e-5)],
        operators.ROPE: [(heads, *turn)],
        operators.ROPE_BACKWARD: [(heads, *turn)],
        operators.SWIGLU: [(rows, grad_rows)],
        operators.SWIGLU_BACKWARD: [(rows.exp(), rows, grad_rows)],
        operators.ROW_LOSSES: [(rows, target, -100, 0.0), (rows, target, -100, 0.2)],
        operators.ROW_LOSSES_BACKWARD: [(weight[:4], rows, target, sums, -100, 0.2)],
    }
    calls[F.rms_norm] = [(rows, (6,), weight, 1e-5), (rows, (6,), None, 1e-3)]
    return {operator: [Sample(operator, args) for args in cases] for operator, cases in calls.items()}
