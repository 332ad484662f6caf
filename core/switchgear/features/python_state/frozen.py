"""Frozen values: what a place held, kept so that later content can be compared with it."""

from __future__ import annotations

import operator
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from switchgear.features.python_state.holders import Content, dict_base, items_of
from switchgear.record.guards import HEAP, Known, value_key

#: Values that are compared by type and value; other objects are by identity.
ATOMS = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), range, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
#: The ids of classes, for those of a user may have no hash: of values that lead nowhere, and of what is kept as it is,
#: whatever holds it.
VALUES = frozenset(map(id, (bool, float, str, bytes, type(None))))
_PLAIN = VALUES.union(map(id, (int, type, types.FunctionType, types.ModuleType)))
#: Stands for a tensor: which one it is matters only where it is an input, which has guards of its own.
TENSOR: Any = type("AnyTensor", (), {"__repr__": lambda self: "a tensor"})()
#: Stands for an integer that is an input, 2 or more.
NUMBER: Any = type("AnyNumber", (), {"__repr__": lambda self: "an integer"})()


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """What a container held: its class, its keys if it is a dict, and its frozen items."""

    kind: type
    keys: tuple[object, ...] | None
    items: tuple[object, ...]
    #: What a deque or a defaultdict is made with.
    setting: object = None
    #: The container, where it has attributes, which are read of this one.
    itself: object = None

    @property
    def size(self) -> int:
        """How many items there are at all depths."""
        inner = [item.size for item in self.items if isinstance(item, Contents)]
        return len(self.items) + sum(inner)

    def __repr__(self) -> str:
        held = self.items if self.keys is None else dict(zip(self.keys, self.items, strict=True))
        return f"{self.kind.__name__}({held!r})"


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """Any object of a class: an object of an argument's, of which each call has its own."""

    kind: type


#: Stands for a float that is an input.
FLOAT = Instance(float)


def is_atom(value: object) -> bool:
    """Whether a value is compared by its value."""
    # of a module isinstance asks for `__class__` as well, which is noted meanwhile
    kind = type(value)
    return issubclass(kind, ATOMS) and not kind.__flags__ & HEAP


class Knowledge(Protocol):
    """What is known of the objects of a call."""

    def content(self, container: Any) -> Content:
        """What a container held at first, by key."""

    def is_of_call(self, value: object) -> bool:
        """Whether an object is one of the arguments, or reached from one."""


def freeze(value: Any, known: Knowledge, around: tuple[int, ...] = ()) -> object:
    """A value as something that no write changes. A container inside of itself is held by identity."""
    kind = type(value)
    if id(kind) in _PLAIN:
        is_made = kind is types.FunctionType and known.is_of_call(value)
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
    is_container = issubclass(
        kind, (tuple, list, dict, set, frozenset, deque, types.MappingProxyType)
    )
    if not is_container or kind is torch.Size or id(value) in around:
        return Instance(kind) if known.is_of_call(value) else value
    held = known.content(value)
    items = tuple(held.values())
    if not issubclass(kind, (set, frozenset)):
        items = tuple([freeze(item, known, (*around, id(value))) for item in items])
    has_keys = issubclass(kind, (dict, types.MappingProxyType))
    has_attributes = kind.__flags__ & HEAP and kind.__dictoffset__
    itself = value if has_attributes and not known.is_of_call(value) else None
    return Contents(kind, tuple(held) if has_keys else None, items, _setting(value), itself)


def _setting(container: object) -> object:
    if isinstance(container, deque):
        return container.maxlen
    return container.default_factory if isinstance(container, defaultdict) else None


def same(value: object, frozen: object) -> bool:
    """Whether a value is what was frozen."""
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
    """A frozen value as part of a key: equal for what the same values meet."""
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
    """Whether these are the keys of a dict, in their order."""
    now = dict_base(value).keys(value) if isinstance(value, dict) else value.keys()
    if len(now) == len(keys) and all(map(operator.is_, now, keys)):
        return True
    return [*map(value_key, now)] == [*map(value_key, keys)]


def changing(value: Any, frozen: object) -> Iterator[Any]:
    """The containers in a value, at all depths, that may hold something else later."""
    if not isinstance(frozen, Contents) or frozen.kind is types.MethodType:
        return
    if not issubclass(frozen.kind, (tuple, frozenset)):
        yield value
    if not isinstance(value, (set, frozenset)):
        for item, inner in zip(items_of(value), frozen.items, strict=True):
            if isinstance(inner, Contents):
                yield from changing(item, inner)


def numbers_changed(value: Any, frozen: object, path: str) -> Iterator[str]:
    """The paths of numbers that are others than those frozen, in containers of the same shape."""
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
    """Whether the object that was frozen, the same one, may hold something else later."""
    if isinstance(frozen, Contents):
        is_fixed = frozen.kind in (tuple, frozenset, types.MethodType)
        return not is_fixed or any(map(can_change, frozen.items))
    return isinstance(frozen, Instance)


def leaves(frozen: object) -> Iterator[Any]:
    """What is not a container in a frozen value."""
    if isinstance(frozen, Contents):
        for item in frozen.items:
            yield from leaves(item)
    else:
        yield frozen
