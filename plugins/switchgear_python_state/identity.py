"""Identity: places of a call with one object, or with different objects. `is` tells, and a write reaches all places."""

from __future__ import annotations

import enum
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from switchgear_core import torch_private as internals
from switchgear_core.record.signature import Argument, Attribute, follow, is_object
from switchgear_python_state.holders import KINDS, MISSING

#: Types of objects that are identical in every call if equal.
_SAME_EVERYWHERE = (
    type,
    types.FunctionType,
    types.CodeType,
    types.ModuleType,
    types.BuiltinFunctionType,
    nn.Module,
    enum.Enum,
)


class Place(NamedTuple):
    """The path of an object: `steps` from `owner`, an argument of each call or a fixed object."""

    owner: Any
    steps: tuple[object, ...]

    @property
    def is_of_call(self) -> bool:
        """Whether each call has an own object here."""
        return isinstance(self.owner, Argument)

    def matches(self, other: Place) -> bool:
        """Check whether two places are the same in every call."""
        is_same = self.owner is other.owner or (self.is_of_call and self.owner == other.owner)
        return is_same and self.steps == other.steps

    def fetch(self, objects: Mapping[int, object]) -> Any:
        """Return the object at this place in a call with these argument objects, or `MISSING`."""
        try:
            owner = objects[self.owner.index] if self.is_of_call else self.owner
            return follow(owner, self.steps)
        except (LookupError, AttributeError, TypeError, ValueError):
            return MISSING

    def __str__(self) -> str:
        steps = [f".{step.name}" if isinstance(step, Attribute) else f"[{step!r}]" for step in self.steps]
        owner = self.owner if self.is_of_call else f"a {type(self.owner).__name__} outside"
        return f"{owner}{''.join(steps)}"


class Places:
    """Paths of reached objects: objects of the call, and containers, which later calls may replace."""

    def __init__(self) -> None:
        #: Whether there are objects among the arguments; each call has its own.
        self.has_objects = False
        #: Places of objects of the call, by id.
        self.of_call: dict[int, Place] = {}
        self._others: dict[int, Place] = {}
        #: Pairs of places of one object, at least one place in the call.
        self._ties: list[tuple[Place, Place]] = []
        #: Further places of containers, by id.
        self._aliases: defaultdict[int, list[Place]] = defaultdict(list)

    def clear(self) -> None:
        """Release the places outside the call."""
        self._others, self._aliases = {}, defaultdict(list)

    def at(self, owner: object, steps: tuple[object, ...]) -> Place:
        """Return the place at `steps` from an owner; from an argument, if the owner belongs to the call."""
        place = self.of_call.get(id(owner))
        return Place(owner, steps) if place is None else Place(place.owner, place.steps + steps)

    def add(self, value: object, place: Place) -> None:
        """Record the place of an object."""
        if place.is_of_call and _is_made_by_calls(value):
            self.of_call[id(value)] = place
        elif self.has_objects or isinstance(value, KINDS):
            self._others[id(value)] = place

    def add_another(self, value: object, place: Place) -> None:
        """Record another place of an object."""
        if self.has_objects and _has_identity(value):
            self.tie(value, place)
        if isinstance(value, KINDS):
            first = self._others.setdefault(id(value), place)
            if not first.matches(place):
                self._aliases[id(value)].append(place)

    def tie(self, value: object, place: Place) -> None:
        """Guard that two places of an object hold one object in every call, if either place is of the call."""
        first = self.of_call.get(id(value)) or self._others.get(id(value)) or Place(value, ())
        if first.is_of_call and place.is_of_call:
            is_new = first != place
        else:
            is_new = first.is_of_call or place.is_of_call
        if is_new:
            self._ties.append((first, place))

    def of(self, value: object) -> Place | None:
        """Return the place where a call finds its own object, or the current container."""
        place = self.of_call.get(id(value))
        if place is None and isinstance(value, KINDS):
            place = self._others.get(id(value))
        return place

    def identities(self, objects: Mapping[int, object], located: Iterable[int]) -> Identities:
        """Return which of the objects, by id, have several paths, and which must differ from similar objects.

        Containers found by calls at a place count too: `located` has their ids.
        """
        ties = [*self._ties]
        for key in self._aliases.keys() & {*located}:
            first = self._others[key]
            ties += [(first, place) for place in self._aliases[key]]
        if not self.has_objects:
            return Identities(ties)
        kinds = {key: id(type(value)) for key, value in objects.items() if _has_identity(value)}
        counts = Counter(kinds.values())
        of_call = {key for key, kind in kinds.items() if key in self.of_call and counts[kind] > 1}
        alike = {kinds[key] for key in of_call}
        others = {key for key, kind in kinds.items() if key not in self.of_call and kind in alike}
        return Identities(ties, [self.of_call[key] for key in of_call], frozenset(others))


def _is_made_by_calls(value: object) -> bool:
    """Check whether another call may have its own, equal object."""
    if type(value) is types.FunctionType:
        return is_object(value)
    return not issubclass(type(value), _SAME_EVERYWHERE)


def _has_identity(value: object) -> bool:
    """Check whether the identity of an object matters among equal objects."""
    is_value = issubclass(type(value), (tuple, frozenset, torch.SymInt, torch.SymFloat))
    return not is_value and _is_made_by_calls(value)


@dataclass(frozen=True, slots=True, eq=False)
class Identities:
    """Guarded identities of every call of an entry.

    `ties` are pairs of places with one object. `distinct_places` have different objects, none among `others`:
    the ids of objects reached by the function itself.
    """

    ties: Sequence[tuple[Place, Place]] = ()
    distinct_places: Sequence[Place] = ()
    others: frozenset[int] = frozenset()

    def missed(self, objects: Mapping[int, object]) -> str:
        """Return a description of the first difference in a call with these argument objects, or an empty text."""
        for first, second in self.ties:
            if first.fetch(objects) is not second.fetch(objects):
                return f"{first} and {second} (from one object to two)"
        met: dict[int, Place] = {}
        for place in self.distinct_places:
            key = id(place.fetch(objects))
            if key in self.others:
                return f"{place} (to an object that the function reaches by itself)"
            if met.setdefault(key, place) is not place:
                return f"{met[key]} and {place} (from two objects to one)"
        return ""

    def add_to(self, root: Any, nodes: Sequence[Any], hold: Callable[[Any], bool]) -> None:
        """Add the guards to a tree: for `distinct_places` on their `nodes`, for `ties` through `hold` at the root."""
        label = ["which objects are one"]
        if self.ties:
            root.add_lambda_guard(hold, label, None)
        if len(nodes) > 1:
            internals.add_all_different(root, nodes, hold, label)
        for node in nodes if self.others else ():
            node.add_lambda_guard(lambda value: id(value) not in self.others, label, None)
