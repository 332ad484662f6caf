"""The implementations and grad rules of the executor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import switchgear as sg

from .operators import (
    gradients_of_both,
    linear_cross_entropy,
    linear_cross_entropy_and_sums,
    loss_and_gradients,
)

table = sg.Table("chunked_loss")
table.implementation(linear_cross_entropy)(linear_cross_entropy)
table.implementation(linear_cross_entropy_and_sums)(linear_cross_entropy_and_sums)


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *options: Any) -> Any:
    """Compute the loss; save the gradients, computed on the way, because the logits are gone by the backward."""
    loss, by_x, by_weight, by_bias = loss_and_gradients(x, weight, bias, target, *options)
    return loss, (by_x, by_weight, by_bias)


def backward(by_x: Tensor, by_weight: Tensor, by_bias: Tensor, grad: Tensor) -> Any:
    """Return the gradient of each tensor argument; None for the target."""
    bias = (by_bias * grad.to(by_bias.dtype),) if by_bias.shape[0] else ()
    return (by_x * grad.to(by_x.dtype), by_weight * grad.to(by_weight.dtype), *bias, None)


table.augmented(linear_cross_entropy, forward=forward, backward=backward)


@table.grad_rule(linear_cross_entropy_and_sums)
def with_sums(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *options: Any) -> Any:
    """Compute loss and sums; save the arguments and the sums. The backward recomputes the logits."""
    loss, sums = linear_cross_entropy_and_sums(x, weight, bias, target, *options)

    def pullback(grad: Tensor | None, grad_sums: Tensor | None) -> Any:
        grads = (
            torch.zeros_like(loss) if grad is None else grad,
            torch.zeros_like(sums) if grad_sums is None else grad_sums,
        )
        by_x, by_weight, by_bias = gradients_of_both(*grads, x, weight, bias, target, sums, *options)
        return (by_x, by_weight, None) if bias is None else (by_x, by_weight, by_bias, None)

    return (loss, sums), pullback
