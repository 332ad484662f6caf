"""Inputs that share memory with a written input: views of a common base, as in eager.

The function is captured again in this form, and the entry holds only for inputs with the same overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.record.signature import Base, InputSource, OwnSource, base_of


@dataclass(slots=True)
class Home:
    """The base of inputs in a common memory: a tensor, and the wrapper that stands for it once it is an input.

    `source` belongs to an input from which calls find the tensor.
    """

    tensor: torch.Tensor
    source: OwnSource
    wrapper: torch.Tensor | None = None

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the wrapper of an input in this memory, recorded as a view of the base's wrapper."""
        assert self.wrapper is not None
        if tensor is self.tensor:
            return self.wrapper
        if tensor.requires_grad and internals.is_one_of_several(tensor):
            raise Unsupported(
                "the function writes to memory that inputs share: one is a view that was made with others at once, "
                "as by chunk() or unbind(), and eager lets nobody use it afterwards; pass it made by narrow()"
            )
        with torch.enable_grad():  # the mode of the views' creation, as far as autograd tells
            return internals.view_again(tensor, self.wrapper)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def is_view_of_constant(tensor: torch.Tensor) -> bool:
    """Check whether a tensor is a view that requires grad of a base that does not."""
    return tensor.requires_grad and tensor._base is not None and not tensor._base.requires_grad


def sharing(
    tensors: Sequence[torch.Tensor], written_positions: Sequence[int]
) -> Iterator[tuple[int, int, bool]]:
    """Yield pairs of positions in a storage, and whether a write to one affects the other.

    The first is from `written_positions`. A write affects the other if their memory overlaps, or if autograd gives them
    one history.
    """
    if not written_positions or internals.none_share_storage(tensors):
        return
    keys = internals.storage_keys(tensors)
    places: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        places.setdefault(key, []).append(index)
    for index in written_positions:
        others = places[keys[index]]
        if len(others) > 1:
            start, stop = _extent(tensors[index])
            for other in others:
                begin, end = _extent(tensors[other])
                if other != index:
                    overlap = start < end and begin < stop
                    yield index, other, overlap or _share_a_history(tensors[index], tensors[other])


def _share_a_history(target: torch.Tensor, other: torch.Tensor) -> bool:
    base = base_of(target)
    return (base is base_of(other) and base.requires_grad) or _extent(target) == _extent(other)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Check whether several elements may share an address."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach and tensor.numel():
            return True
        reach += (size - 1) * stride
    return False


def overlap_in_part(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Check whether two tensors of a storage overlap without being the same elements in the same order."""
    (start, stop), (begin, end) = _extent(left), _extent(right)
    if start >= end or begin >= stop or _layout(left) == _layout(right):
        return False
    unit = math.gcd(left.itemsize, right.itemsize)
    with internals.real_dispatch():
        return bool(torch.isin(_places(left, unit), _places(right, unit)).any())


def reaches_outside(view: torch.Tensor, viewed: torch.Tensor) -> bool:
    """Check whether a view of the same dtype has elements outside the viewed tensor."""
    with internals.real_dispatch():
        return not torch.isin(_places(view, view.itemsize), _places(viewed, view.itemsize)).all()


def _places(tensor: torch.Tensor, unit: int) -> torch.Tensor:
    """Return the addresses of the parts of its elements, in units of `unit` bytes."""
    parts = tensor.itemsize // unit
    places = torch.arange(parts) + int(tensor.storage_offset()) * parts
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = (places[:, None] + torch.arange(size) * stride * parts).flatten()
    return places


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    start = int(tensor.storage_offset()) * tensor.itemsize
    reach: int = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return start, start + (reach + 1) * tensor.itemsize if tensor.numel() else start


def home_of(inputs: Sequence[tuple[torch.Tensor, InputSource]]) -> Home:
    """Return the base of inputs in a common memory. Raises `Unsupported` if autograd knows several bases."""
    bases = {id(base): (base, source) for tensor, source in inputs for base in (base_of(tensor),)}
    if len(bases) > 1:
        raise Unsupported(
            "the function writes to an input that shares memory with another, of which autograd knows nothing (as "
            "after .data or detach()); pass a clone of one",
            splits=False,  # a graph that writes to one input saves the other
        )
    ((tensor, source),) = bases.values()
    assert not isinstance(source, Base)
    return Home(tensor, source)
