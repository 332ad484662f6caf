"""What the executor implements and differentiates."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import switchgear as sg

from .operators import linear_cross_entropy, loss_and_gradients

table = sg.Table("chunked_loss")
table.implementation(linear_cross_entropy)(linear_cross_entropy)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *options: Any) -> Any:
    """The loss; saved are its gradients, computed on the way, for the logits are gone by the backward."""
    loss, by_x, by_weight, by_bias = loss_and_gradients(x, weight, bias, target, *options)
    return loss, (by_x, by_weight, by_bias)


def backward(by_x: Tensor, by_weight: Tensor, by_bias: Tensor, grad: Tensor) -> Any:
    """Of each tensor argument, the target's among them."""
    bias = (by_bias * grad.to(by_bias.dtype),) if by_bias.shape[0] else ()
    return (by_x * grad.to(by_x.dtype), by_weight * grad.to(by_weight.dtype), *bias, None)


table.augmented(linear_cross_entropy, forward=forward, backward=backward)
