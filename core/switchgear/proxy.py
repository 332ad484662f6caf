"""Proxies: the values that flow through a trace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_SHORT_KINDS = {"float": "f", "bfloat": "bf", "complex": "c", "int": "i", "uint": "u", "bool": "b8"}


@dataclass(frozen=True, slots=True)
class TensorProxy:
    """A tensor of a trace: its name and its metadata, never its data.

    `shape` and `stride` count elements; `requires_grad` is autograd's own answer at that point of the
    program; `is_conj` and `is_neg` are PyTorch's lazy bits.
    """

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    storage_offset: int = 0
    is_conj: bool = False
    is_neg: bool = False

    @property
    def type_string(self) -> str:
        """`cpu f32[2, 3]`, as the printed trace shows it."""
        dtype = str(self.dtype).removeprefix("torch.")
        kind = dtype.rstrip("0123456789")
        return f"{self.device} {_SHORT_KINDS.get(kind, kind)}{dtype.removeprefix(kind)}{list(self.shape)}"

    @property
    def metadata(self) -> tuple[object, ...]:
        """Everything but the name."""
        layout = self.shape, self.stride, self.storage_offset
        return *layout, self.dtype, self.device, self.requires_grad, self.is_conj, self.is_neg

    @property
    def is_differentiable(self) -> bool:
        """Whether the dtype can carry a gradient."""
        return self.dtype.is_floating_point or self.dtype.is_complex


def bytes_of(*values: TensorProxy) -> int:
    """The bytes that values take, each by itself."""
    return sum(math.prod(value.shape) * value.dtype.itemsize for value in values)
