"""Gradients that save statistics of a row instead of values computed from the row.

PyTorch's formula for the cross entropy saves the logarithms of all probabilities: for cast 16-bit logits, twice their
size. A root mean square norm outside CUDA's fused kernel is decomposed, and saves its steps. With these rules, the
backward recomputes such values in the reading kernels. Its sources are the input, which lives anyway or is cheap to
recompute, and one number per row, in 32 bits at least. Layer norms save two numbers per row in PyTorch already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg

Gradients: TypeAlias = tuple[Tensor | None, ...]

rules = sg.Table("nvfuser")

#: Classes are compared in 32 bits: nvFuser's kernel of the cross entropy's gradient then takes half the time.
_MOST_CLASSES = 2**31 - 1


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _floating(call: sg.BoundSymbol) -> str | None:
    """Return why these rules do not apply to a call, whatever the operator."""
    if any(proxy.dtype.is_complex for proxy in call.inputs):
        return "complex numbers"
    if call.inputs and not call.inputs[0].shape:
        return "a tensor without dimensions"
    if len({proxy.dtype for proxy in call.inputs if proxy.dtype.is_floating_point}) > 1:
        return "tensors of several dtypes"
    return None


def _plain_norm(call: sg.BoundSymbol) -> bool | str:
    return _floating(call) or True


def _rows_of(x: Tensor, normalized_shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the dimensions that are not normalised, and the normalised ones."""
    split = x.dim() - len(normalized_shape)
    return list(range(split)), list(range(split, x.dim()))


def _summed(x: Tensor, dims: list[int]) -> Tensor:
    return x.sum(dims) if dims else x


@rules.grad_rule(F.rms_norm, checker=_plain_norm)
def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
    """Save the reciprocal of the root mean square."""
    outer, inner = _rows_of(input, normalized_shape)
    x = _wide(input)
    scale = torch.rsqrt((x * x).mean(inner, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps))
    normal = x * scale
    result = normal if weight is None else normal * weight

    def pullback(grad: Tensor) -> Gradients:
        normal = _wide(input) * scale
        wide_grad = _wide(grad)
        by_normal = wide_grad if weight is None else wide_grad * weight
        by_input = (by_normal - normal * (by_normal * normal).mean(inner, keepdim=True)) * scale
        gradients: list[Tensor | None] = [by_input.to(input.dtype)]
        if weight is not None:
            gradients.append(_summed(wide_grad * normal, outer).to(weight.dtype))
        return tuple(gradients)

    return result.to(input.dtype), pullback


def _indexed_rows(call: sg.BoundSymbol) -> bool | str:
    names = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
    arguments = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    reason = _floating(call)
    if reason is not None:
        return reason
    if len(arguments["input"].shape) != 2:
        return "logits that are no rows"
    if arguments["target"].dtype.is_floating_point:
        return "targets that are probabilities"
    if isinstance(classes := arguments["input"].shape[1], int) and classes > _MOST_CLASSES:
        return "more classes than are numbered in 32 bits"
    if any(arguments.get(name) is not None for name in ("weight", "size_average", "reduce")):
        return "weights of classes, or an argument that PyTorch has deprecated"
    if arguments.get("label_smoothing", 0.0) != 0.0:
        return "smoothed labels"
    return True


@rules.grad_rule(F.cross_entropy, checker=_indexed_rows)
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: None = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Callable[[Tensor], Gradients]]:
    """Save the logarithm of each row's sum of exponentials."""
    counts = target != ignore_index
    column = torch.where(counts, target, 0).unsqueeze(1)
    total = _wide(input).logsumexp(1)
    # not from a wide copy: a PyTorch kernel would read it, and nvFuser would write all of the copy
    target_logit = _wide(input.gather(1, column).squeeze(1))
    losses = torch.where(counts, total - target_logit, 0.0)
    number = counts.sum().to(total.dtype)
    if reduction == "none":
        result = losses
    elif reduction == "sum":
        result = losses.sum()
    else:
        result = losses.sum() / number

    def pullback(grad: Tensor) -> Gradients:
        row_grad = _wide(grad)
        row_grad = row_grad / number if reduction == "mean" else row_grad
        weighted = torch.where(counts, row_grad, 0.0).unsqueeze(1)
        is_target = torch.arange(input.shape[1], dtype=torch.int32, device=input.device) == column.to(torch.int32)
        probability = torch.exp(_wide(input) - total.unsqueeze(1))
        return ((probability - is_target.to(probability.dtype)) * weighted).to(input.dtype), None

    return result.to(input.dtype), pullback
