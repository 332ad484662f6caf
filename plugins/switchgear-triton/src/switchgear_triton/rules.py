"""The implementations and grad rules of the executor; every backward is an operator with its own kernel."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

import switchgear as sg

from . import operators
from .executor import takes_alike, takes_cross_entropy, takes_logits, takes_rms_norm, takes_rows, takes_turned

table = sg.Table("triton")
_KERNELS: tuple[tuple[Any, Any], ...] = (
    (operators.RMS_NORM, takes_rows),
    (operators.RMS_NORM_BACKWARD, takes_rows),
    (operators.ROPE, takes_turned),
    (operators.ROPE_BACKWARD, takes_turned),
    (operators.SWIGLU, takes_alike),
    (operators.SWIGLU_BACKWARD, takes_alike),
    (operators.ROW_LOSSES, takes_logits),
    (operators.ROW_LOSSES_BACKWARD, takes_logits),
)


def _by_kernel(name: str) -> Callable[..., Any]:
    """Return the launcher of this name; its first call imports Triton."""

    @functools.wraps(getattr(operators, name))
    def launch(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(".launch", __package__), name)(*args, **kwargs)

    return launch


for _operator, _checker in _KERNELS:
    table.implementation(_operator, _checker)(_by_kernel(_operator._opname))


@table.implementation(F.rms_norm, takes_rms_norm)
def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Run the kernel of the written-out norm."""
    assert eps is not None
    y: Tensor = _by_kernel("rms_norm")(input, weight, eps)
    return y


@table.grad_rule(operators.RMS_NORM, takes_rows)
def rms_norm_rule(x: Tensor, weight: Tensor | None, eps: float) -> Any:
    """Compute the norm and save the arguments: the backward recomputes the root of each row, which is read anyway."""
    return operators.RMS_NORM(x, weight, eps), _pullback_of_norm(x, weight, eps)


@table.grad_rule(F.rms_norm, takes_rms_norm)
def functional_rms_norm_rule(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Any:
    """Compute PyTorch's own norm; save the arguments."""
    return F.rms_norm(input, normalized_shape, weight, eps), _pullback_of_norm(input, weight, eps)


def _pullback_of_norm(x: Tensor, weight: Tensor | None, eps: float | None) -> Callable[[Tensor], Any]:
    def pullback(grad: Tensor) -> Any:
        by_x, by_weight = operators.RMS_NORM_BACKWARD(grad, x, weight, eps)
        return by_x if weight is None else (by_x, by_weight)

    return pullback


def _turns_alone(call: sg.BoundSymbol) -> bool | str:
    if any(value.requires_grad for value in call.inputs[1:]):
        return "the angles require grad"
    return takes_turned(call)


@table.grad_rule(operators.ROPE, _turns_alone)
def rope_rule(x: Tensor, cos: Tensor, sin: Tensor) -> Any:
    """Compute RoPE; save the angles."""
    return operators.ROPE(x, cos, sin), lambda grad: (operators.ROPE_BACKWARD(grad, cos, sin), None, None)


@table.grad_rule(operators.SWIGLU, takes_alike)
def swiglu_rule(gate: Tensor, up: Tensor) -> Any:
    """Compute SwiGLU; save the arguments."""
    return operators.SWIGLU(gate, up), lambda grad: operators.SWIGLU_BACKWARD(grad, gate, up)


@table.implementation(F.cross_entropy, takes_cross_entropy)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the rows' losses by the kernel, then their mean or sum."""
    losses, _ = _by_kernel("row_losses")(input, target, ignore_index, label_smoothing)
    return _reduced(losses, target, ignore_index, reduction).to(input.dtype)


@table.grad_rule(F.cross_entropy, takes_cross_entropy)
def cross_entropy_rule(
    input: Tensor,
    target: Tensor,
    weight: None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Compute the loss; save the logits and a number for each row."""
    losses, sums = operators.ROW_LOSSES(input, target, ignore_index, label_smoothing)

    def pullback(grad: Tensor) -> tuple[Tensor, None]:
        rows = grad.to(losses.dtype).expand(losses.shape)
        if reduction == "mean":
            rows = rows / (target != ignore_index).sum()
        return operators.ROW_LOSSES_BACKWARD(rows, input, target, sums, ignore_index, label_smoothing), None

    return _reduced(losses, target, ignore_index, reduction).to(input.dtype), pullback


def _reduced(losses: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    total = losses.sum()
    return total / (target != ignore_index).sum() if reduction == "mean" else total
