"""Grad rules that save masks in place of values: the hooks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

import switchgear as sg
from switchgear.testing import Sample

from .pattern import PASS
from .rules import table


@sg.hookimpl
def switchgear_register_grad_rules(registry: sg.executors.Registry) -> None:
    """Install the rules."""
    table.install_grad_rules(registry)


@sg.hookimpl
def switchgear_passes() -> Sequence[sg.passes.PassPlacement]:
    """Return the pass that finds the pattern."""
    return [PASS]


@sg.hookimpl
def switchgear_samples() -> dict[object, list[Sample]]:
    """Return calls for `switchgear test lean_rules`."""
    x = torch.linspace(-2, 2, 48).reshape(2, 2, 3, 4)
    attention: list[dict[str, object]] = [{"is_causal": True}, {"attn_mask": torch.ones(3, 3).tril()}]
    return {
        F.dropout: [Sample(F.dropout, (x, 0.3))],
        F.scaled_dot_product_attention: [
            Sample(F.scaled_dot_product_attention, (x, x.sin(), x.cos()), {"dropout_p": 0.3, **options})
            for options in attention
        ],
    }
