"""The operators of this package: what they compute, by PyTorch.

They are composites of PyTorch's operators, so PyTorch infers their shapes and differentiates them to any order, and
whoever does not take one runs what it is made of.
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
    """The rows of `x` over the roots of their mean squares, times `weight`."""
    wide = _wide(x)
    normal = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return normal if weight is None else normal * weight


def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """The gradients of `x` and `weight`; that of no weight is that of ones."""
    wide, wide_grad = _wide(x), _wide(grad)
    root = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    normal = wide * root
    weighted = wide_grad if weight is None else wide_grad * weight
    by_x = root * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    by_weight = (wide_grad * normal).reshape(-1, x.shape[-1]).sum(0)
    return by_x.to(x.dtype), by_weight.to(x.dtype if weight is None else weight.dtype)


def rotate_half(x: Tensor) -> Tensor:
    """Each pair of the halves' elements, a quarter of a turn on."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The halves of rows, as pairs, turned by angles: rotary position embedding as Transformers writes it."""
    return x * cos + rotate_half(x) * sin


def rope_backward(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The gradient of `x`."""
    return grad * cos - rotate_half(grad * sin)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """`silu(gate) * up`."""
    return F.silu(gate) * up


def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of both."""
    sigmoid = torch.sigmoid(gate)
    return grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * gate * sigmoid


def row_losses(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """The cross entropy of each row, 0 where it is ignored, and the logarithm of its sum of powers; wide."""
    wide = _wide(logits)
    kept = target != ignore_index
    chosen = wide.gather(1, target.masked_fill(~kept, 0)[:, None])[:, 0]
    sums = torch.logsumexp(wide, 1)
    losses = sums - (1 - label_smoothing) * chosen
    if label_smoothing:
        losses = losses - label_smoothing * wide.mean(1)
    return losses.masked_fill(~kept, 0), sums


def row_losses_backward(
    grad: Tensor, logits: Tensor, target: Tensor, sums: Tensor, ignore_index: int, label_smoothing: float
) -> Tensor:
    """The gradient of the logits, from that of the rows' losses."""
    kept = target != ignore_index
    share = torch.exp(_wide(logits) - sums[:, None])
    hit = target[:, None] == torch.arange(logits.shape[1], device=target.device)
    share = share - (1 - label_smoothing) * hit - label_smoothing / logits.shape[1]
    return (share * grad.masked_fill(~kept, 0)[:, None]).to(logits.dtype)


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
    """An operator as it stands in a trace."""
    return sg.Symbol(str(operator), operator)
