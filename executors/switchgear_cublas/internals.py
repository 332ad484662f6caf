"""Every private API of PyTorch that this executor leans on, and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

#: The largest number of `torch.float8_e4m3fn`.
_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def addmm_activation(bias: Tensor, rows: Tensor, columns: Tensor, *, gelu: bool) -> Tensor:
    """`bias + rows @ columns` and GELU or ReLU, one kernel on CUDA; GELU is by tanh there, and by erf on a CPU."""
    result: Tensor = torch._addmm_activation(bias, rows, columns, use_gelu=gelu)
    return result


def scaled_mm(rows: Tensor, columns: Tensor, bias: Tensor | None) -> Tensor:
    """`rows @ columns + bias`, each matrix rounded to 8 bits after it is scaled to fit, in the dtype of `rows`."""
    left, left_scale = _rounded(rows)
    right, right_scale = _rounded(columns.t())  # cuBLASLt takes the second by columns
    result: Tensor = torch._scaled_mm(
        left, right.t(), scale_a=left_scale, scale_b=right_scale, bias=bias, out_dtype=rows.dtype
    )
    return result


def _rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix in 8 bits, row by row in memory, and the number to multiply it with again."""
    scale = matrix.abs().amax().float().clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
    return (matrix.float() / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).contiguous(), scale
