"""Launchers of the kernels: each function runs the operator of the same name, with the same arguments."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import kernels

#: Whether Triton's interpreter runs kernels, on a CPU. Meanwhile functions of `triton.language` are replaced.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_lock = threading.Lock()
_BLOCK = 1024


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Run the operator `rms_norm`."""
    x = x.contiguous()
    y = torch.empty_like(x)
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    with _alone():
        kernels.rms_norm[(x.numel() // size,)](
            x, _pointer(weight, x), y, size, eps, weight is not None, _wide(x), block, num_warps=_warps(block)
        )
    return y


def rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Run the operator `rms_norm_backward`."""
    grad, x = grad.contiguous(), x.contiguous()
    size = x.shape[-1]
    rows = x.numel() // size
    programs = min(rows, _processors(x))
    by_x, wide = torch.empty_like(x), torch.float64 if x.dtype == torch.float64 else torch.float32
    by_weight = torch.empty(programs, size, dtype=wide, device=x.device)
    block = triton.next_power_of_2(size)
    with _alone():
        kernels.rms_norm_backward[(programs,)](
            *(grad, x, _pointer(weight, x), by_x, by_weight, rows, size, eps, weight is not None, _wide(x), block),
            num_warps=_warps(block),
        )
    return by_x, by_weight.sum(0).to(x.dtype if weight is None else weight.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Run the operator `rope`."""
    return _turned(x, cos, sin, backward=False)


def rope_backward(grad: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Run the operator `rope_backward`."""
    return _turned(grad, cos, sin, backward=True)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, backward: bool) -> Tensor:
    y = torch.empty_like(x)
    cos, sin = cos.expand(x.shape), sin.expand(x.shape)
    _, heads, length, size = x.shape
    strides = [stride for tensor in (x, y, cos, sin) for stride in tensor.stride()[:3]]
    with _alone():
        kernels.rope[(x.numel() // size,)](
            x, cos, sin, y, heads, length, size // 2, *strides, backward, _wide(x), triton.next_power_of_2(size // 2)
        )
    return y


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Run the operator `swiglu`; both operands have one layout, without gaps."""
    y = torch.empty_like(gate)
    with _alone():
        kernels.swiglu[(triton.cdiv(y.numel(), _BLOCK),)](gate, up, y, y.numel(), _wide(gate), _BLOCK)
    return y


def swiglu_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Run the operator `swiglu_backward`."""
    by_gate, by_up = torch.empty_like(gate), torch.empty_like(up)
    with _alone():
        kernels.swiglu_backward[(triton.cdiv(gate.numel(), _BLOCK),)](
            grad, gate, up, by_gate, by_up, gate.numel(), _wide(gate), _BLOCK
        )
    return by_gate, by_up


def row_losses(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Run the operator `row_losses`."""
    logits, target = logits.contiguous(), target.contiguous()
    rows, classes = logits.shape
    losses = torch.empty(
        rows, dtype=torch.float64 if logits.dtype == torch.float64 else torch.float32, device=logits.device
    )
    sums = torch.empty_like(losses)
    with _alone():
        kernels.row_losses[(rows,)](
            logits, target, losses, sums, classes, ignore_index, label_smoothing, _wide(logits), _block(classes)
        )
    return losses, sums


def row_losses_backward(
    grad: Tensor, logits: Tensor, target: Tensor, sums: Tensor, ignore_index: int, label_smoothing: float
) -> Tensor:
    """Run the operator `row_losses_backward`."""
    grad, logits, target, sums = (tensor.contiguous() for tensor in (grad, logits, target, sums))
    rows, classes = logits.shape
    by_logits = torch.empty_like(logits)
    block = _block(classes)
    with _alone():
        kernels.row_losses_backward[(rows, triton.cdiv(classes, block))](
            grad, logits, target, sums, by_logits, classes, ignore_index, label_smoothing, _wide(logits), block
        )
    return by_logits


def _pointer(weight: Tensor | None, otherwise: Tensor) -> Tensor:
    return otherwise if weight is None else weight.contiguous()


def _wide(x: Tensor) -> Any:
    return tl.float64 if x.dtype == torch.float64 else tl.float32


def _block(size: int) -> int:
    return min(4096, int(triton.next_power_of_2(size)))


def _warps(block: int) -> int:
    return 4 if block < 2048 else 8 if block < 8192 else 16


def _processors(x: Tensor) -> int:
    return 4 if x.device.type == "cpu" else torch.cuda.get_device_properties(x.device).multi_processor_count


def _alone() -> AbstractContextManager[Any]:
    return _lock if INTERPRETED else nullcontext()
