"""Every private API of PyTorch in the executor, and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

#: The largest number of `torch.float8_e4m3fn`.
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def addmm_activation(bias: Tensor, rows: Tensor, columns: Tensor, *, gelu: bool) -> Tensor:
    """Return GELU or ReLU of `bias + rows @ columns`, one kernel on CUDA; GELU is by tanh there, by erf on a CPU."""
    result: Tensor = torch._addmm_activation(bias, rows, columns, use_gelu=gelu)
    return result


def scaled_mm(rows: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
    """Return `rows @ columns + bias` in the dtype of `rows`, with each matrix scaled to fit and rounded to 8 bits."""
    left, left_scale = _rounded(rows)
    right, right_scale = _rounded(columns.t())  # cuBLASLt expects the second by columns
    result: Tensor = torch._scaled_mm(
        left, right.t(), scale_a=left_scale, scale_b=right_scale, bias=bias, out_dtype=rows.dtype
    )
    return result


def _rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return a row-major matrix in 8 bits, and the factor of its scale."""
    scale = matrix.abs().amax().float().clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
    return (matrix.float() / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).contiguous(), scale
