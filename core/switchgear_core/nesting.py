"""Tensors, and other values, in nested arguments."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from switchgear_core.errors import Unsupported

#: The most frequent types of arguments other than tensors, stand-ins and containers.
PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Return an iterator over the tensors in a nest of tuples, lists, dicts and slices, in order."""
    return iter(instances_in(torch.Tensor, value))


def instances_in(kinds: type | tuple[type, ...], value: object) -> list[Any]:
    """Return the instances of kinds, none of them plain, in a nest of tuples, lists, dicts and slices, in order."""
    pending, instances = [value], list[Any]()
    while pending:
        part: Any = pending.pop()
        if type(part) in PLAIN:  # faster than `isinstance`
            continue
        if isinstance(part, kinds):
            instances.append(part)
        elif isinstance(part, (tuple, list)):
            pending.extend(reversed(part))
        elif isinstance(part, dict):
            pending.extend(reversed(part.values()))
        elif isinstance(part, slice):
            pending.extend((part.step, part.stop, part.start))
    return instances


def map_tensors(function: Callable[[torch.Tensor], object], value: object) -> Any:
    """Return `value` with each tensor in its nest of tuples, lists, dicts and slices replaced by `function(tensor)`."""
    return map_instances(torch.Tensor, function, value)


def map_instances(
    kinds: type | tuple[type, ...], function: Callable[[Any], object], value: object
) -> Any:
    """Return `value` with the instances that `instances_in` finds replaced."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, kinds):
        return function(value)
    if isinstance(value, (tuple, list)):
        items = [map_instances(kinds, function, item) for item in value]
        if isinstance(value, list):
            return items
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return torch.Size(items) if isinstance(value, torch.Size) else tuple(items)
    if isinstance(value, dict):
        return {key: map_instances(kinds, function, item) for key, item in value.items()}
    if isinstance(value, slice):
        parts = value.start, value.stop, value.step
        return slice(*[map_instances(kinds, function, part) for part in parts])
    if isinstance(value, types.GeneratorType) and kinds is torch.Tensor:
        raise Unsupported("a generator was passed to a PyTorch function; pass a list")
    return value


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy without history, of equal strides, in memory of its own."""
    if tensor.layout is not torch.strided:
        return tensor.detach().clone()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((size - 1) * stride for size, stride in steps) + 1 if tensor.numel() else 0
    memory = tensor.detach().as_strided((reach,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride(), 0)


def memory_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory; 0 if there is none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
