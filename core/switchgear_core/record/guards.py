"""Guards: assumptions of an entry about a call, checked before the entry runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from switchgear_core.errors import CaptureError

#: Types whose values are equal if their content is.
_BY_VALUE = (
    *(int, str, bytes, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)


class FailedAssertion(CaptureError):
    """A failed assertion of the function about the data of a call: eager raises its error."""


class OtherData(Exception):
    """A failed check: the entry is for calls with other data. Nothing has been written or drawn."""


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A condition on a call.

    Attributes:
        condition: Python over the flattened arguments `a0`, `a1`, …, the tuple `inputs` of input tensors, and `scope`.
        why: description of the difference in a failing call, or a function of the flattened arguments.
    """

    condition: str
    why: str | Callable[[Sequence[Any]], str]
    scope: Mapping[str, Any] = field(default_factory=dict)
    #: Function to restore the former state after compiling the entry, which runs a user Function's backward.
    settle: Callable[[], None] | None = None
    #: The checked conditions as text, one per line; by default `why`.
    conditions: Callable[[], Sequence[str]] | None = None
    #: Paths of integers in Python objects that differ in a call, given its flattened arguments.
    varying: Callable[[Sequence[Any]], Iterable[str]] | None = None
    #: Modules checked by identity: once a module is collected, no call meets the guard.
    modules: Sequence[Known] = ()

    def reason(self, leaves: Sequence[Any] = ()) -> str:
        """Return a description of the difference in a call with the flattened arguments."""
        return self.why if isinstance(self.why, str) else self.why(leaves)


class Known(weakref.ref[nn.Module]):
    """A weak reference to a module, compared by identity; after the module's collection equal to nothing else."""

    __slots__ = ()

    def __repr__(self) -> str:
        module = self()
        return "a module that is gone" if module is None else repr(module)

    def names(self, value: object) -> bool:
        """Check whether a value is the module."""
        return value is not None and value is self()


def still_there(modules: Iterable[Known]) -> list[nn.Module]:
    """Return the live modules."""
    return [module for reference in modules if (module := reference()) is not None]


class Same:
    """An object as part of a key: equal to itself alone, regardless of `==` in its class."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


#: The flag of classes from a class statement, which may define `==`.
HEAP = 1 << 9


def value_key(value: object) -> object:
    """Return a Python value as part of a key, by type and content, without calling a method of a user's class.

    Floats compare by representation (nan equals nan, 0.0 differs from -0.0), ranges and slices by their parts, and
    other objects by identity.
    """
    kind = type(value)
    if isinstance(value, nn.Module):
        return Known(value)
    if kind.__flags__ & HEAP:
        return (kind, Same(value))
    if isinstance(value, (float, complex)):
        return (kind, repr(value))
    if isinstance(value, (slice, range)):
        return (kind, value_key(value.start), value_key(value.stop), value_key(value.step))
    if kind in (tuple, frozenset):
        return (kind, kind(map(value_key, value)))  # type: ignore[call-overload]
    return (kind, value if isinstance(value, _BY_VALUE) else Same(value))
