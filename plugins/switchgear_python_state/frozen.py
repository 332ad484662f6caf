"""Frozen values: the former content of a place, kept for comparison with later content."""

from __future__ import annotations

import operator
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from switchgear_core.record.guards import HEAP, Known, value_key
from switchgear_python_state.holders import Content, dict_base, items_of

#: Types whose values are compared by type and value; other objects are compared by identity.
ATOMS = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), range, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
#: Ids of types whose values lead to no other object, and of types stored unchanged in any container. Ids, because
#: classes of users may be unhashable.
VALUES = frozenset(map(id, (bool, float, str, bytes, type(None))))
_PLAIN = VALUES.union(map(id, (int, type, types.FunctionType, types.ModuleType)))
#: Stand-in for a tensor: its identity matters only for an input, and inputs have separate guards.
TENSOR: Any = type("AnyTensor", (), {"__repr__": lambda self: "a tensor"})()
#: Stand-in for an input integer of 2 or more.
NUMBER: Any = type("AnyNumber", (), {"__repr__": lambda self: "an integer"})()


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The former content of a container: its class, its keys if it is a dict, and its frozen items."""

    kind: type
    keys: tuple[object, ...] | None
    items: tuple[object, ...]
    #: The `maxlen` of a deque, the `default_factory` of a defaultdict.
    setting: object = None
    #: The container itself, for guards on its attributes; None without attributes.
    itself: object = None

    @property
    def size(self) -> int:
        """The number of items at all depths."""
        inner = [item.size for item in self.items if isinstance(item, Contents)]
        return len(self.items) + sum(inner)

    def __repr__(self) -> str:
        items = self.items if self.keys is None else dict(zip(self.keys, self.items, strict=True))
        return f"{self.kind.__name__}({items!r})"


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """Stand-in for any object of a class: objects of an argument differ from call to call."""

    kind: type


#: Stand-in for an input float.
FLOAT = Instance(float)


def is_atom(value: object) -> bool:
    """Check whether a value is compared by value."""
    # for a module, isinstance also reads `__class__`, and the read would be recorded
    kind = type(value)
    return issubclass(kind, ATOMS) and not kind.__flags__ & HEAP


class Knowledge(Protocol):
    """Knowledge about the objects of a call."""

    def content(self, container: Any) -> Content:
        """Return the initial content of a container, by key."""

    def is_of_call(self, value: object) -> bool:
        """Check whether an object is an argument, or reached from an argument."""


def freeze(value: Any, knowledge: Knowledge, around: tuple[int, ...] = ()) -> object:
    """Return a value in a form that no write changes. A container inside itself is kept by identity."""
    kind = type(value)
    if id(kind) in _PLAIN:
        is_made = kind is types.FunctionType and knowledge.is_of_call(value)
        return Instance(kind) if is_made else value
    if issubclass(kind, torch.Tensor):
        return TENSOR
    if issubclass(kind, (torch.SymInt, torch.SymFloat)):
        return NUMBER if issubclass(kind, torch.SymInt) else FLOAT
    if issubclass(kind, torch.nn.Module):
        return Known(value)
    if kind is types.MethodType:
        owner = value.__self__
        of = Known(owner) if isinstance(owner, torch.nn.Module) else owner
        return Contents(types.MethodType, None, (value.__func__, of))
    is_container = issubclass(kind, (tuple, list, dict, set, frozenset, deque, types.MappingProxyType))
    if not is_container or kind is torch.Size or id(value) in around:
        return Instance(kind) if knowledge.is_of_call(value) else value
    content = knowledge.content(value)
    items = tuple(content.values())
    if not issubclass(kind, (set, frozenset)):
        items = tuple([freeze(item, knowledge, (*around, id(value))) for item in items])
    has_keys = issubclass(kind, (dict, types.MappingProxyType))
    has_attributes = kind.__flags__ & HEAP and kind.__dictoffset__
    itself = value if has_attributes and not knowledge.is_of_call(value) else None
    return Contents(kind, tuple(content) if has_keys else None, items, _setting(value), itself)


def _setting(container: object) -> object:
    if isinstance(container, deque):
        return container.maxlen
    return container.default_factory if isinstance(container, defaultdict) else None


def same(value: object, frozen: object) -> bool:
    """Check whether a value equals the frozen value."""
    if value is frozen:
        return True
    if frozen is TENSOR:
        return issubclass(type(value), torch.Tensor)
    if frozen is NUMBER:
        return type(value) is int and value > 1
    if isinstance(frozen, Known):
        return frozen.names(value)
    if isinstance(frozen, Instance):
        return type(value) is frozen.kind
    if isinstance(frozen, Contents):
        return type(value) is frozen.kind and _same_contents(value, frozen)
    if not is_atom(frozen) or type(value) is not type(frozen):
        return False
    return bool(value_key(value) == value_key(frozen))


def frozen_key(frozen: object) -> object:
    """Return a frozen value as part of a key. Frozen values with equal keys match the same values."""
    if isinstance(frozen, Known):
        return value_key(frozen())
    if isinstance(frozen, Instance):
        return frozen.kind.__name__, id(frozen.kind)
    if not isinstance(frozen, Contents):
        return value_key(frozen)
    parts = (frozen.kind, frozen.itself, *(frozen.keys or ()))
    return *map(id, parts), value_key(frozen.setting), *map(frozen_key, frozen.items)


def _same_contents(value: Any, frozen: Contents) -> bool:
    if frozen.kind is types.MethodType:
        return value.__func__ is frozen.items[0] and same(value.__self__, frozen.items[1])
    is_itself = frozen.itself is None or value is frozen.itself
    if not is_itself or value_key(_setting(value)) != value_key(frozen.setting):
        return False
    items = items_of(value)
    if isinstance(value, (set, frozenset)):
        return {*map(value_key, items)} == {*map(value_key, frozen.items)}
    if len(items) != len(frozen.items):
        return False
    if frozen.keys is not None and not same_keys(value, frozen.keys):
        return False
    return all(map(same, items, frozen.items))


def same_keys(value: Any, keys: tuple[object, ...]) -> bool:
    """Check whether a dict has exactly the keys `keys`, in order."""
    now = dict_base(value).keys(value) if isinstance(value, dict) else value.keys()
    if len(now) == len(keys) and all(map(operator.is_, now, keys)):
        return True
    return [*map(value_key, now)] == [*map(value_key, keys)]


def changing(value: Any, frozen: object) -> Iterator[Any]:
    """Yield the containers in a value, at all depths, whose content may change."""
    if not isinstance(frozen, Contents) or frozen.kind is types.MethodType:
        return
    if not issubclass(frozen.kind, (tuple, frozenset)):
        yield value
    if not isinstance(value, (set, frozenset)):
        for item, inner in zip(items_of(value), frozen.items, strict=True):
            if isinstance(inner, Contents):
                yield from changing(item, inner)


def numbers_changed(value: Any, frozen: object, path: str) -> Iterator[str]:
    """Yield the paths of numbers that differ from the frozen numbers, in containers of the same shape."""
    if type(frozen) is type(value) in (int, float) and value != frozen:
        yield path
    if not isinstance(frozen, Contents) or not isinstance(value, (tuple, list, dict)):
        return
    items = items_of(value)
    if type(value) is not frozen.kind or len(items) != len(frozen.items):
        return
    keys: Iterable[Any] = range(len(items)) if frozen.keys is None else frozen.keys
    if frozen.keys is None or same_keys(value, frozen.keys):
        for key, now, item in zip(keys, items, frozen.items, strict=True):
            yield from numbers_changed(now, item, f"{path}[{key!r}]")


def can_change(frozen: object) -> bool:
    """Check whether the frozen object may change its content later."""
    if isinstance(frozen, Contents):
        is_fixed = frozen.kind in (tuple, frozenset, types.MethodType)
        return not is_fixed or any(map(can_change, frozen.items))
    return isinstance(frozen, Instance)


def leaves(frozen: object) -> Iterator[Any]:
    """Yield the non-container values in a frozen value, at all depths."""
    if isinstance(frozen, Contents):
        for item in frozen.items:
            yield from leaves(item)
    else:
        yield frozen
