"""The grad rules, each with its residuals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg

table = sg.Table("lean_rules")
_aten = torch.ops.aten


def relu_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ReLU; save the mask of the stopped elements. A NaN passes, as in PyTorch."""
    y = torch.relu(x)
    return y, y <= 0


def relu_backward(stopped: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient: 0 at stopped elements, for an infinite gradient too."""
    return grad.masked_fill(stopped, 0)


table.augmented(_aten.relu.default, forward=relu_forward, backward=relu_backward)


def drops_on_cpu(call: sg.BoundSymbol) -> bool | str:
    """Check whether PyTorch draws floating-point numbers for this dropout; elsewhere PyTorch keeps a mask already."""
    if call.inputs[0].device.type != "cpu":
        return "PyTorch's own dropout keeps a mask there"
    if call.inputs[0].dtype not in (torch.float32, torch.float64):
        return "in lower precision, rounding would differ from PyTorch's"
    p, training = (sg.passes.argument(call, name) for name in ("p", "training"))
    if sg.passes.argument(call, "inplace"):
        return "in place"
    return (training and 0 < p < 1) or "nothing is drawn"


@table.grad_rule(F.dropout, checker=drops_on_cpu)
def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Compute dropout; save the mask."""
    mask = _draw(x, p)
    return _drop(x, mask, p), lambda grad: _drop(grad, mask, p)


def attends_with_weights(call: sg.BoundSymbol) -> bool | str:
    """Check whether PyTorch materialises the attention weights, and saves three copies."""
    query, key = (sg.passes.argument(call, name) for name in ("query", "key"))
    mask = sg.passes.argument(call, "attn_mask")
    if not any(part.symbol.name == "aten._safe_softmax.default" for part in call.subsymbols):
        return "PyTorch's kernel keeps no weights"
    if not 0 < sg.passes.argument(call, "dropout_p") < 1:
        return "without dropout"
    if query.device.type != "cpu" or query.dtype not in (torch.float32, torch.float64):
        return "float32 and float64 on a CPU only"
    if call.kwargs.get("enable_gqa") or query.shape[:-2] != key.shape[:-2]:
        return "heads that are shared, or broadcast"
    if mask is not None and mask.requires_grad:
        return "the mask requires grad"
    return True


@table.grad_rule(F.scaled_dot_product_attention, checker=attends_with_weights)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute attention; save the arguments and the dropout mask. The backward recomputes the weights."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    # matrix products would copy operands of another layout each time
    scaled, key, value = query.contiguous() * factor, key.contiguous(), value.contiguous()
    raised = 1 / (1 - dropout_p)

    def weights() -> Tensor:
        scores = scaled @ key.transpose(-2, -1)
        mask = attn_mask
        if is_causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if mask is not None:
            scores = scores + (
                torch.where(mask, 0.0, -torch.inf).to(scores.dtype) if mask.dtype == torch.bool else mask
            )
        result: Tensor = _aten._safe_softmax.default(scores, -1)
        return result

    first = weights()
    drop_mask = _draw(first, dropout_p)

    def pullback(grad: Tensor) -> Sequence[Tensor | None]:
        probabilities, grad = weights(), grad * raised
        by_value = (probabilities * drop_mask).transpose(-2, -1) @ grad
        by_weights = (grad @ value.transpose(-2, -1)) * drop_mask
        by_scores = _aten._softmax_backward_data.default(by_weights, probabilities, -1, probabilities.dtype)
        gradients = (by_scores @ key) * factor, by_scores.transpose(-2, -1) @ scaled, by_value
        return gradients if attn_mask is None else (*gradients, None)

    return ((first * drop_mask) @ value) * raised, pullback


def _draw(like: Tensor, p: float) -> Tensor:
    """Return the mask of kept elements, drawn as by PyTorch for this layout; bytes multiply faster than booleans."""
    return torch.empty_like(like, dtype=torch.uint8).bernoulli_(1 - p)


def _drop(x: Tensor, mask: Tensor, p: float) -> Tensor:
    return x * mask * (1 / (1 - p))
