"""A large loss does not keep the memory that it was computed in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear.passes.reuse_buffers import SMALLEST
from tests.core.training import assert_same, assert_trains_as_eager, forward, lines, operators

LOSSES = [F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy, F.soft_margin_loss]


def values(count: int) -> list[Tensor]:
    return [torch.linspace(0.1, 0.9, count), torch.linspace(0.2, 0.7, count)]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_holds_what_it_needs(loss: Any, reduction: str) -> None:
    x, y = values(SMALLEST)
    jitted = assert_trains_as_eager(lambda x, y: loss(x, y, reduction=reduction), x.requires_grad_(), y)
    found = jitted(x, y)
    assert found.untyped_storage().nbytes() == found.numel() * found.itemsize
    assert ("aten.clone.default" in operators(forward(jitted))) == (reduction != "none")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_small_loss_is_not_copied(loss: Any) -> None:
    jitted = sg.jit(loss, executors=["torch"])
    assert_same(jitted(*values(16)), loss(*values(16)))
    assert len(lines(forward(jitted))) == 1
