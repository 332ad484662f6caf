"""The operators: a linear layer and a cross entropy, a chunk of rows at a time, with and without gradients."""

from __future__ import annotations

import torch
from torch import Tensor

#: The most logits in memory at a time, unless a single row has more.
LOGITS = 2**23


@torch.library.custom_op("switchgear_chunked_loss::linear_cross_entropy", mutates_args=())
def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    mean: bool,
) -> Tensor:
    """Compute `F.cross_entropy(F.linear(x, weight, bias).float(), target, …)`.

    Args:
        x: `[..., features]`.
        weight: `[classes, features]`.
        bias: `[classes]`, or None.
        target: one class for each row of `x`.
        ignore_index: the class of rows that do not count.
        label_smoothing: the share of the target that goes to all classes, from 0 to 1.
        mean: whether to return the mean over the counted rows, and not the sum.

    Returns:
        The loss, without dimensions, at least in float32.
    """
    return _chunked(x, weight, bias, target, ignore_index, label_smoothing, mean, gradients=False)[0]


@linear_cross_entropy.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    mean: bool,
) -> Tensor:
    return x.new_empty((), dtype=torch.float32 if x.dtype.itemsize < 4 else x.dtype)


@torch.library.custom_op("switchgear_chunked_loss::loss_and_gradients", mutates_args=())
def loss_and_gradients(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    mean: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the loss, and its gradients by `x`, `weight` and `bias`; without a bias, the last is empty."""
    loss, *gradients = _chunked(x, weight, bias, target, ignore_index, label_smoothing, mean, gradients=True)
    by_x, by_weight, by_bias = gradients
    return loss, by_x, by_weight, by_bias


@loss_and_gradients.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    mean: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    loss = x.new_empty((), dtype=torch.float32 if x.dtype.itemsize < 4 else x.dtype)
    by_bias = weight.new_empty(weight.shape[0] if bias is not None else 0)
    return loss, x.new_empty(x.shape), weight.new_empty(weight.shape), by_bias


@torch.library.custom_op("switchgear_chunked_loss::linear_cross_entropy_and_sums", mutates_args=())
def linear_cross_entropy_and_sums(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    mean: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the loss, and `torch.logsumexp` of the logits of each row, the input of a z-loss."""
    rows: list[Tensor] = []
    options = ignore_index, label_smoothing, mean
    loss = _chunked(x, weight, bias, target, *options, gradients=False, sums=rows)[0]
    return loss, torch.cat(rows).view(x.shape[:-1])


@linear_cross_entropy_and_sums.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    mean: bool,
) -> tuple[Tensor, Tensor]:
    exact = torch.float32 if x.dtype.itemsize < 4 else x.dtype
    return x.new_empty((), dtype=exact), x.new_empty(x.shape[:-1], dtype=exact)


@torch.library.custom_op("switchgear_chunked_loss::gradients_of_both", mutates_args=())
def gradients_of_both(
    grad: Tensor,
    grad_sums: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    sums: Tensor,
    ignore_index: int,
    label_smoothing: float,
    mean: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients by `x`, `weight` and `bias` from the gradients of loss and sums; recompute the logits.

    The forward cannot compute these gradients early: the use of the sums is unknown there.
    """
    classes, exact = weight.shape[0], sums.dtype
    rows, labels, sums = x.reshape(-1, x.shape[-1]), target.reshape(-1), sums.reshape(-1)
    counted = labels != ignore_index
    labels = labels.masked_fill(~counted, 0)
    scale = grad.to(exact) / counted.sum().clamp(min=1) if mean else grad.to(exact)
    by_loss, by_sums = torch.where(counted, scale, 0), grad_sums.reshape(-1).to(exact)
    by_x = torch.empty_like(rows, memory_format=torch.contiguous_format)
    by_weight = torch.zeros_like(weight, dtype=exact, memory_format=torch.contiguous_format)
    by_bias = weight.new_zeros(classes if bias is not None else 0, dtype=exact)
    for start in range(0, len(rows), size := max(1, LOGITS // classes)):
        part = slice(start, start + size)
        logits = torch.nn.functional.linear(rows[part], weight, bias).to(exact)
        share = by_loss[part, None]
        by_logits = logits.sub_(sums[part, None]).exp_().mul_(share + by_sums[part, None])
        if label_smoothing:
            by_logits -= share * (label_smoothing / classes)
        by_logits.scatter_add_(1, labels[part, None], share * (label_smoothing - 1))
        if bias is not None:
            by_bias += by_logits.sum(0)
        by_logits = by_logits.to(x.dtype)
        torch.mm(by_logits, weight, out=by_x[part])
        by_weight += by_logits.t() @ rows[part]
    return by_x.view(x.shape), by_weight.to(weight.dtype), by_bias.to(weight.dtype)


@gradients_of_both.register_fake
def _(
    grad: Tensor,
    grad_sums: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    sums: Tensor,
    ignore_index: int,
    label_smoothing: float,
    mean: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    by_bias = weight.new_empty(weight.shape[0] if bias is not None else 0)
    return x.new_empty(x.shape), weight.new_empty(weight.shape), by_bias


def _chunked(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    mean: bool,
    *,
    gradients: bool,
    sums: list[Tensor] | None = None,
) -> list[Tensor]:
    classes = weight.shape[0]
    rows, labels = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    counted = labels != ignore_index
    labels = labels.masked_fill(~counted, 0)
    exact = torch.float32 if x.dtype.itemsize < 4 else x.dtype
    total = torch.zeros((), dtype=exact, device=x.device)
    by_x = torch.empty_like(rows, memory_format=torch.contiguous_format) if gradients else rows
    by_weight = torch.zeros_like(weight, dtype=exact, memory_format=torch.contiguous_format) if gradients else weight
    by_bias = weight.new_zeros(classes if bias is not None else 0, dtype=exact)
    count = counted.sum()
    scale = 1 / count.clamp(min=1).to(exact) if mean else torch.ones_like(total)
    for start in range(0, len(rows), size := max(1, LOGITS // classes)):
        chunk, at, mask = (tensor[start : start + size] for tensor in (rows, labels, counted))
        logits = torch.nn.functional.linear(chunk, weight, bias).to(exact)
        targets = logits.gather(1, at[:, None])[:, 0]
        average = logits.mean(1) if label_smoothing else None
        highest = logits.amax(1, keepdim=True)
        powers = logits.sub_(highest).exp_()
        powers_sum = powers.sum(1, keepdim=True)
        log_sums = (powers_sum.log() + highest)[:, 0]
        if sums is not None:
            sums.append(log_sums)
        loss = log_sums - (1 - label_smoothing) * targets
        if average is not None:
            loss -= label_smoothing * average
        total += torch.where(mask, loss, 0).sum()
        if gradients:
            share = torch.where(mask, scale, 0)[:, None]
            by_logits = powers.mul_(share / powers_sum)
            if label_smoothing:
                by_logits -= share * (label_smoothing / classes)
            by_logits.scatter_add_(1, at[:, None], share * (label_smoothing - 1))
            if bias is not None:
                by_bias += by_logits.sum(0)
            by_logits = by_logits.to(x.dtype)
            torch.mm(by_logits, weight, out=by_x[start : start + size])
            if by_weight.dtype == by_logits.dtype:
                by_weight.addmm_(by_logits.t(), chunk)
            else:
                by_weight += by_logits.t() @ chunk
    loss = total / count if mean else total
    return [loss, by_x.view(x.shape), by_weight.to(weight.dtype), by_bias.to(weight.dtype)]
