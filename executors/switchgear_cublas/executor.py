"""The executor's choice of matrix products, and their kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

import switchgear as sg

from . import kernels, operators, plans
from .operators import (
    LINEAR_FP8,
    LINEAR_GELU,
    LINEAR_GELU_AUX,
    LINEAR_RELU,
    MATMUL_BGRAD,
    MATMUL_DGELU,
)

_LEAVES = frozenset(f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm"))
_COMPOSITE_NAMES = "nn.functional.linear matmul mm addmm bmm baddbmm"
_COMPOSITES = frozenset(f"torch.{name}" for name in _COMPOSITE_NAMES.split())
_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_HALF = (torch.bfloat16, torch.float16)
_Kernels = Mapping[sg.Symbol, Callable[..., Any]]
#: Reference implementations of the operators, by PyTorch.
_REFERENCE: _Kernels = {
    LINEAR_GELU: operators.linear_gelu,
    LINEAR_GELU_AUX: operators.linear_gelu_aux,
    LINEAR_RELU: operators.linear_relu,
    MATMUL_DGELU: operators.matmul_dgelu,
    MATMUL_BGRAD: operators.matmul_bgrad,
}
#: Implementations on CUDA, by PyTorch's entry points.
_TORCH: _Kernels = {LINEAR_GELU: kernels.linear_gelu, LINEAR_RELU: kernels.linear_relu}
#: Implementations on CUDA, by plans of nvmath.
_NVMATH: _Kernels = {
    LINEAR_GELU_AUX: plans.linear_gelu_aux,
    MATMUL_DGELU: plans.matmul_dgelu,
    MATMUL_BGRAD: plans.matmul_bgrad,
}


class CublasExecutor(sg.Executor):
    """Executor of matrix products by cuBLAS, with activations, their gradients and bias gradients in epilogues.

    On a CPU, PyTorch runs the same operators with the same semantics.

    Args:
        nvmath: use the package nvmath-python for epilogues without an entry point in PyTorch, on CUDA.
        fp8: multiply bfloat16 and float16 arguments of linear layers in 8 bits. Gradients keep the precision of the
            arguments.
    """

    def __init__(self, *, nvmath: bool = False, fp8: bool = False) -> None:
        super().__init__("cublas", priority=-300)
        self.nvmath = nvmath
        self.fp8 = fp8

    def unavailable(self) -> str | None:
        """Return why the executor cannot run: a package that an option needs is missing."""
        return plans.unavailable() if self.nvmath else None

    def limited(self) -> str | None:
        """Return the limits of this machine: without CUDA there is the CPU reference path alone."""
        if torch.cuda.is_available():
            return None
        why = "no device is found" if torch.version.cuda else "this PyTorch is built without it"
        return f"available on its CPU reference path; CUDA absent: {why}"

    def claim(self, bound_symbol: sg.BoundSymbol, entry: object) -> sg.executors.Implementation | sg.Declined:
        """Accept products of real numbers as PyTorch runs them, and the operators of Switchgear."""
        symbol = bound_symbol.symbol
        if symbol in _REFERENCE or symbol == LINEAR_FP8:
            return self._claim(bound_symbol)
        if symbol.name in _COMPOSITES:
            if any(proxy.requires_grad for proxy in bound_symbol.inputs):
                return sg.Declined(
                    "its path in PyTorch can depend on requires_grad; its operators are claimed one by one"
                )
        elif symbol.name not in _LEAVES:
            return sg.Declined("no matrix product")
        reason = _unsuitable(bound_symbol)
        return sg.Declined(reason) if reason else sg.executors.Implementation(self.name, symbol.fn)

    def _claim(self, call: sg.BoundSymbol) -> sg.executors.Implementation | sg.Declined:
        reason = _unsuitable(call) or _irregular(call)
        if reason:
            return sg.Declined(reason)
        if call.symbol == LINEAR_FP8:
            reason = _unfit_for_8_bits(call) if self.fp8 else "CublasExecutor(fp8=True) would take it"
            return sg.Declined(reason) if reason else sg.executors.Implementation(self.name, kernels.linear_fp8)
        if call.inputs[0].device.type == "cpu":
            return sg.executors.Implementation(self.name, _REFERENCE[call.symbol])
        kernel = _TORCH.get(call.symbol)
        if kernel is not None:
            return sg.executors.Implementation(self.name, kernel)
        missing = "PyTorch has no entry point to this epilogue; CublasExecutor(nvmath=True) has"
        reason = plans.declined(call) if self.nvmath else missing
        return sg.Declined(reason) if reason else sg.executors.Implementation(self.name, _NVMATH[call.symbol])


def _unsuitable(call: sg.BoundSymbol) -> str:
    """Return why cuBLAS cannot run a product, or an empty string."""
    first = call.inputs[0]
    if first.device.type not in ("cpu", "cuda"):
        return f"not on {first.device.type}"
    if first.dtype not in _DTYPES:
        return f"no kernels for {first.dtype}"
    if any(proxy.device != first.device for proxy in (*call.inputs, *call.outputs)):
        return "on several devices"
    if any(proxy.dtype != first.dtype for proxy in (*call.inputs, *call.outputs)):
        return "of several dtypes"
    return ""


def _irregular(call: sg.BoundSymbol) -> str:
    """Return why the kernels cannot take the operands of a product with an epilogue, or an empty string."""
    if any(proxy.is_neg for proxy in call.inputs):
        return "an operand is negated lazily"
    if any(math.prod(proxy.shape) == 0 for proxy in (*call.inputs, *call.outputs)):
        return "empty"
    if not all(_is_contiguous(proxy) for proxy in call.outputs):
        return "its result is not contiguous"
    if call.symbol == MATMUL_DGELU and not _is_contiguous(call.inputs[2]):
        return "the input of the GELU is not contiguous"
    return ""


def _is_contiguous(proxy: sg.TensorProxy) -> bool:
    """Check whether the elements lie row by row, without gaps."""
    step = 1
    for size, stride in zip(reversed(proxy.shape), reversed(proxy.stride), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _unfit_for_8_bits(call: sg.BoundSymbol) -> str:
    x, weight = call.inputs[:2]
    if x.dtype not in _HALF:
        return f"8 bits take the place of bfloat16 and float16, not of {x.dtype}"
    if any(size % 16 for size in weight.shape):
        return f"sizes {list(weight.shape)} of the weight are no multiples of 16"
    if x.device.type == "cuda" and torch.cuda.get_device_capability(x.device) < (8, 9):
        return f"{torch.cuda.get_device_name(x.device)} has no products of 8 bits"
    return ""
