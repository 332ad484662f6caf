"""Guards: what an entry takes for granted of a call, looked at before it is run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from switchgear.errors import CaptureError

#: Values that are equal if their content is.
_BY_VALUE = (
    *(int, str, bytes, type(None), type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)


class FailedAssertion(CaptureError):
    """What the function asserts of the data of a call does not hold: eager raises the error."""


class OtherData(Exception):
    """A check failed: the entry is for calls with other data. Nothing has been written or drawn."""


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """A condition on a call.

    `condition` is Python over the flattened arguments `a0`, `a1`, …, the tuple `inputs` of the trace's input tensors,
    and the names in `scope`. `why` says what is otherwise in a call, by its flattened arguments, that does not meet it.
    """

    condition: str
    why: str | Callable[[Sequence[Any]], str]
    scope: Mapping[str, Any] = field(default_factory=dict)
    #: Called once the entry is compiled, which runs the backward of a user's Function: all is to be as before.
    settle: Callable[[], None] | None = None
    #: What it asks for in words, a line each; where nothing is given, that is `why`.
    listed: Callable[[], Sequence[str]] | None = None
    #: Which integers in Python's objects are others in a call, given its flattened arguments, by their paths.
    varying: Callable[[Sequence[Any]], Iterable[str]] | None = None
    #: The modules that it knows by identity: once one of them is gone, no call meets it.
    modules: Sequence[Known] = ()

    def reason(self, leaves: Sequence[Any] = ()) -> str:
        """What is otherwise in a call with these flattened arguments."""
        return self.why if isinstance(self.why, str) else self.why(leaves)


class Known(weakref.ref[nn.Module]):
    """A module that is known by identity and not held: once it is gone, this is equal to nothing else."""

    __slots__ = ()

    def __repr__(self) -> str:
        module = self()
        return "a module that is gone" if module is None else repr(module)

    def names(self, value: object) -> bool:
        """Whether a value is that module."""
        return value is not None and value is self()


def still_there(modules: Iterable[Known]) -> list[nn.Module]:
    """Those that are not gone."""
    return [module for known in modules if (module := known()) is not None]


class Same:
    """An object as part of a key: equal to itself alone, whatever its class makes of `==`."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


#: The flag of classes that a class statement made, which may have an `==` of their own.
HEAP = 1 << 9


def value_key(value: object) -> object:
    """A Python value as part of a key: by type and content, which is asked of no method of a user's.

    Floats are by representation (nan is nan, 0.0 is not -0.0), ranges and slices by their parts; other objects by
    identity.
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
