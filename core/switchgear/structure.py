"""The nesting of arguments and return values: PyTorch's pytrees, and dataclasses that nobody registered there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True)
class Structure:
    """A pytree whose leaves at the positions in `records` are dataclass instances, flattened in their turn."""

    spec: pytree.TreeSpec
    records: tuple[tuple[int, type, tuple[str, ...], Structure], ...] = ()

    @property
    def is_leaf(self) -> bool:
        """Whether there is no nesting at all."""
        return self.spec.is_leaf() and not self.records

    def unflatten(self, leaves: list[Any]) -> Any:
        """The nested value with these leaves."""
        if self.records:
            leaves = list(leaves)
        for index, kind, names, inner in self.records:
            own = slice(index, index + inner.num_leaves)
            leaves[own] = [_record(kind, names, inner.unflatten(leaves[own]))]
        return pytree.tree_unflatten(leaves, self.spec)

    def expression(self, leaves: Iterable[str]) -> str | None:
        """Python for the nested value, given that for each leaf; None for what is more than tuples, lists and dicts."""
        return None if self.records else _expression(self.spec, iter(leaves))

    @property
    def num_leaves(self) -> int:
        """How many leaves there are in all."""
        return self.spec.num_leaves + sum(inner.num_leaves - 1 for _, _, _, inner in self.records)


def _expression(spec: pytree.TreeSpec, leaves: Iterator[str]) -> str | None:
    if spec.is_leaf():
        return next(leaves)
    items = [_expression(child, leaves) for child in spec.children()]
    found = [item for item in items if item is not None]
    if len(found) < len(items):
        return None
    if spec.type is tuple:
        return f"({''.join([f'{item}, ' for item in found])})"
    if spec.type is list:
        return f"[{', '.join(found)}]"
    if spec.type is dict and all(type(key) is str for key in spec.context):
        return "{" + ", ".join([f"{key!r}: {item}" for key, item in zip(spec.context, found, strict=True)]) + "}"
    return None


def flatten(value: Any, *, objects: bool = False) -> tuple[list[Any], Structure]:
    """The leaves of a nested value, and its structure.

    With `objects`, an object that is nothing but its `__dict__` is opened like a dataclass (the caches of
    transformers).
    """
    leaves, spec = pytree.tree_flatten(value, is_leaf=_is_size)
    is_record = _is_record_or_object if objects else _is_record
    if not any(map(is_record, leaves)):
        return leaves, Structure(spec)
    flat: list[Any] = []
    records = []
    for index, leaf in enumerate(leaves):
        if not is_record(leaf):
            flat.append(leaf)
            continue
        names = tuple(field.name for field in dataclasses.fields(leaf)) if _is_record(leaf) else tuple(vars(leaf))
        inner_leaves, inner = flatten([getattr(leaf, name) for name in names], objects=objects)
        records.append((index, type(leaf), names, inner))
        flat.extend(inner_leaves)
    return flat, Structure(spec, tuple(records))


def _is_size(value: Any) -> bool:
    # PyTorch's pytree takes it apart, and makes a tuple of the parts
    return isinstance(value, torch.Size)


def _is_record(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)


def _is_record_or_object(leaf: Any) -> bool:
    kind: Any = type(leaf)
    pickled = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")
    return _is_record(leaf) or (
        hasattr(leaf, "__dict__")
        and all(getattr(kind, name) is getattr(object, name) for name in pickled)
        and kind.__module__ not in ("builtins", "types")
        and not isinstance(leaf, torch.nn.Module | torch.SymInt | torch.SymFloat | torch.SymBool)
    )


def _record(kind: type, names: tuple[str, ...], values: list[Any]) -> Any:
    made: Any = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made
