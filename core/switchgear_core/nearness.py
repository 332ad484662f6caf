"""Nearness: tolerances for results compared with PyTorch's operators, which are not exact themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from switchgear_core.nesting import map_tensors, tensors_in

#: The limit on the error of a result with another order of sums, as a multiple of the error of PyTorch's operators.
_TIMES = 10


def tolerances(
    expected: torch.Tensor,
    exact: torch.Tensor | None = None,
    inputs: Sequence[torch.Tensor] = (),
) -> tuple[float, float]:
    """Return the relative and absolute tolerance of results; zeros for integers.

    The absolute tolerance is the square root of the dtype's precision, times the largest element. It grows where terms
    cancel: there a result more exact than PyTorch's is far from PyTorch's.

    Args:
        expected: the result of PyTorch's operators.
        exact: the same result computed in float64, if possible.
        inputs: the inputs of the computation. In float64, where nothing is more exact, their largest element counts,
            too.
    """
    if not (expected.is_floating_point() or expected.is_complex()):
        return 0.0, 0.0
    near = torch.finfo(expected.dtype).eps ** 0.5
    most = near * _largest(expected)
    if expected.dtype in (torch.float64, torch.complex128):
        most = near * max(_largest(expected), *map(_largest, inputs), 0.0)
    elif exact is not None and exact.shape == expected.shape:
        most += _TIMES * _largest(expected.to(exact.dtype) - exact)
    return near, most


def in_float64(function: Callable[..., object], nest: Any) -> list[torch.Tensor | None]:
    """Return the tensors that a function gives for `(args, kwargs)` widened to float64; empty where it fails."""
    with contextlib.suppress(Exception):
        args, kwargs = map_tensors(widened, nest)
        return [*tensors_in(function(*args, **kwargs))]
    return []


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float64 or complex128; a tensor of integers unchanged."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _largest(tensor: torch.Tensor) -> float:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    finite = tensor[torch.isfinite(tensor)].abs()
    return float(finite.max()) if finite.numel() else 0.0
