"""The operators by PyTorch's own entry points to cuBLASLt, which honour its policies (`torch.backends.cuda.matmul`)."""

from __future__ import annotations

from torch import Tensor

from . import internals


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False) -> Tensor:
    """Run `operators.linear_gelu` on CUDA, in one kernel."""
    return _activated(x, weight, bias, transposed, gelu=True)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False) -> Tensor:
    """Run `operators.linear_relu` on CUDA, in one kernel."""
    return _activated(x, weight, bias, transposed, gelu=False)


def linear_fp8(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Run `operators.linear_fp8`, with a product of 8-bit numbers."""
    return internals.scaled_mm(x.reshape(-1, x.shape[-1]), weight.t(), bias).view(*x.shape[:-1], weight.shape[0])


def _activated(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool, *, gelu: bool) -> Tensor:
    columns = weight if transposed else weight.t()
    # the entry point needs a bias; zeros cost less than a separate kernel for the activation
    bias_or_zeros = x.new_zeros(columns.shape[1]) if bias is None else bias
    result = internals.addmm_activation(bias_or_zeros, x.reshape(-1, x.shape[-1]), columns, gelu=gelu)
    return result.view(*x.shape[:-1], columns.shape[1])
