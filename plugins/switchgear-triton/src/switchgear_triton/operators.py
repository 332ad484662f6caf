"""The operators of this package, computed by PyTorch.

Each is a composite of PyTorch's operators. PyTorch therefore infers shapes and differentiates to any order, and an
executor that declines the composite leaves its parts to others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg

_library = torch.library.Library("switchgear_triton", "DEF")


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Divide the rows of `x` by their root mean squares, and multiply by `weight`."""
    wide = _wide(x)
    normal = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return normal if weight is None else normal * weight


def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Return the gradients of `x` and `weight`; without a weight, of a weight of ones."""
    wide, wide_grad = _wide(x), _wide(grad)
    root = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    normal = wide * root
    weighted = wide_grad if weight is None else wide_grad * weight
    by_x = root * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    by_weight = (wide_grad * normal).reshape(-1, x.shape[-1]).sum(0)
    return by_x.to(x.dtype), by_weight.to(x.dtype if weight is None else weight.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """Swap the halves of rows and negate the new first half: a quarter turn of each pair."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of rows, as pairs, by angles: rotary position embedding as in Transformers."""
    return x * cos + rotate_half(x) * sin


def rope_backward(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the gradient of `x`."""
    return grad * cos - rotate_half(grad * sin)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Compute `silu(gate) * up`."""
    return F.silu(gate) * up


def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `gate` and `up`."""
    sigmoid = torch.sigmoid(gate)
    return grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid


def row_losses(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the cross entropy of each row (0 if ignored) and the `logsumexp` of each row, at least in float32."""
    wide = _wide(logits)
    mask = target != ignore_index
    targets = wide.gather(1, target.masked_fill(~mask, 0)[:, None])[:, 0]
    sums = torch.logsumexp(wide, 1)
    losses = sums - (1 - label_smoothing) * targets
    if label_smoothing:
        losses = losses - label_smoothing * wide.mean(1)
    return losses.masked_fill(~mask, 0), sums


def row_losses_backward(
    grad: Tensor, logits: Tensor, target: Tensor, sums: Tensor, ignore_index: int, label_smoothing: float
) -> Tensor:
    """Return the gradient of the logits, from the gradient of the rows' losses."""
    mask = target != ignore_index
    share = torch.exp(_wide(logits) - sums[:, None])
    hit = target[:, None] == torch.arange(logits.shape[1], device=target.device)
    share = share - (1 - label_smoothing) * hit - label_smoothing / logits.shape[1]
    return (share * grad.masked_fill(~mask, 0)[:, None]).to(logits.dtype)


def _define(function: Callable[..., Any], schema: str) -> Any:
    name = function.__name__
    _library.define(f"{name}{schema}")
    _library.impl(name, function, "CompositeImplicitAutograd")
    return getattr(torch.ops.switchgear_triton, name).default


RMS_NORM = _define(rms_norm, "(Tensor x, Tensor? weight, float eps) -> Tensor")
RMS_NORM_BACKWARD = _define(rms_norm_backward, "(Tensor grad, Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor)")
ROPE = _define(rope, "(Tensor x, Tensor cos, Tensor sin) -> Tensor")
ROPE_BACKWARD = _define(rope_backward, "(Tensor grad, Tensor cos, Tensor sin) -> Tensor")
SWIGLU = _define(swiglu, "(Tensor gate, Tensor up) -> Tensor")
SWIGLU_BACKWARD = _define(swiglu_backward, "(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)")
ROW_LOSSES = _define(
    row_losses, "(Tensor logits, Tensor target, int ignore_index, float label_smoothing) -> (Tensor, Tensor)"
)
ROW_LOSSES_BACKWARD = _define(
    row_losses_backward,
    "(Tensor grad, Tensor logits, Tensor target, Tensor sums, int ignore_index, float label_smoothing) -> Tensor",
)


def symbol(operator: Any) -> sg.Symbol:
    """Return the symbol of an operator in a trace."""
    return sg.Symbol(str(operator), operator)
