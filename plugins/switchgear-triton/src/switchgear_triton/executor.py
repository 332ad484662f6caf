"""The executor, and checkers for the calls that its kernels accept."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence

import torch

import switchgear as sg

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
#: The longest row that a kernel holds at once, in elements.
_LONGEST = 2**16


class TritonExecutor(sg.Executor):
    """Executor of this package's operators by its kernels, on CUDA and ROCm."""

    def unavailable(self) -> str | None:
        """Return the reason if Triton or a device is missing, else None; Triton's interpreter replaces a device."""
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed; PyTorch's builds for CUDA and ROCm bring it"
        if torch.cuda.is_available() or _interpreted():
            return None
        return "no CUDA or ROCm device is found; TRITON_INTERPRET=1 runs the kernels on a CPU, slowly, for tests"


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _unfit(values: Sequence[sg.TensorProxy]) -> str:
    """Return why no kernel accepts these values, or an empty string."""
    first = values[0]
    if first.device.type != ("cpu" if _interpreted() else "cuda"):
        return f"not on {first.device.type}"
    if first.dtype not in _DTYPES:
        return f"no kernels for {first.dtype}"
    if any(value.dtype != first.dtype or value.device != first.device for value in values):
        return "of several dtypes or devices"
    if any(math.prod(value.shape) == 0 for value in values):
        return "empty"
    return "an operand is negated lazily" if any(value.is_neg for value in values) else ""


def takes_rows(call: sg.BoundSymbol) -> bool | str:
    """Check for rows of `x` that a kernel can hold at once, and a contiguous result."""
    x = sg.passes.argument(call, "x")
    size = x.shape[-1] if x.shape else 0
    if not 0 < size <= _LONGEST:
        return f"rows of {size} elements"
    weight = sg.passes.argument(call, "weight")
    reason = _unfit([x] if weight is None else [x, weight]) or _gaps(call.outputs[0])
    return reason or True


def takes_rms_norm(call: sg.BoundSymbol) -> bool | str:
    """Check for `F.rms_norm` over the last dimension."""
    x, weight, eps = (sg.passes.argument(call, name) for name in ("input", "weight", "eps"))
    if len(sg.passes.argument(call, "normalized_shape")) != 1 or eps is None:
        return "over several dimensions, or eps is not given"
    if not 0 < x.shape[-1] <= _LONGEST:
        return f"rows of {x.shape[-1]} elements"
    return _unfit([x] if weight is None else [x, weight]) or _gaps(call.output) or True


def takes_turned(call: sg.BoundSymbol) -> bool | str:
    """Check for four dimensions and rows of even length, contiguous along the last dimension."""
    x, cos, sin = call.inputs
    if reason := _unfit(call.inputs):
        return reason
    if len(x.shape) != 4 or x.shape[-1] % 2 or any(value.stride[-1] != 1 for value in (x, cos, sin)):
        return "no rows of pairs"
    if any(len(value.shape) != 4 or value.shape[-1] != x.shape[-1] for value in (cos, sin)):
        return "angles are broadcast along the row"
    return call.output.stride == x.stride or "its result is laid out otherwise"


def takes_alike(call: sg.BoundSymbol) -> bool | str:
    """Check for elementwise operands and results of one layout, without gaps."""
    if reason := _unfit(call.inputs):
        return reason
    first, *others = (*call.inputs, *call.outputs)
    if any((value.shape, value.stride) != (first.shape, first.stride) for value in others):
        return "operands and results are not laid out alike"
    reached = 1 + sum((size - 1) * step for size, step in zip(first.shape, first.stride, strict=True))
    return reached == math.prod(first.shape) or "there are gaps between elements"


def takes_logits(call: sg.BoundSymbol) -> bool | str:
    """Check for a matrix of logits, and the index of a class for each row."""
    logits, target = sg.passes.argument(call, "logits"), sg.passes.argument(call, "target")
    if len(logits.shape) != 2 or target.dtype != torch.int64:
        return "no matrix of logits, or no indices of classes"
    return _unfit([logits]) or _gaps(call.outputs[0]) or True


def takes_cross_entropy(call: sg.BoundSymbol) -> bool | str:
    """Check for `F.cross_entropy` of a matrix of logits."""
    logits, target = sg.passes.argument(call, "input"), sg.passes.argument(call, "target")
    if len(logits.shape) != 2 or target.dtype != torch.int64 or len(target.shape) != 1:
        return "no matrix of logits, or no indices of classes"
    if any(sg.passes.argument(call, name) is not None for name in ("weight", "size_average", "reduce")):
        return "class weights, or a deprecated option"
    return _unfit([logits]) or True


def _gaps(value: sg.TensorProxy) -> str:
    step = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride), strict=True):
        if size != 1 and stride != step:
            return "its result is not contiguous"
        step *= size
    return ""
