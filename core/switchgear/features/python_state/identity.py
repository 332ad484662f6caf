"""Which places of a call hold one object, and which hold different ones: `is` tells, and a write reaches all of one."""

from __future__ import annotations

import enum
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from switchgear import torch_private as internals
from switchgear.features.python_state.holders import KINDS, MISSING
from switchgear.record.signature import Argument, Attribute, follow, is_object

#: What is the same object in every call, if it is equal.
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
    """Where an object lies: at `steps` from `owner`, which is an argument of each call, or an object itself."""

    owner: Any
    steps: tuple[object, ...]

    @property
    def is_of_call(self) -> bool:
        """Whether each call has its own."""
        return isinstance(self.owner, Argument)

    def matches(self, other: Place) -> bool:
        """Whether it is the same in every call."""
        is_same = self.owner is other.owner or (self.is_of_call and self.owner == other.owner)
        return is_same and self.steps == other.steps

    def fetch(self, objects: Mapping[int, object]) -> Any:
        """What lies there in a call with these objects among its arguments; `MISSING` if nothing does."""
        try:
            owner = objects[self.owner.index] if self.is_of_call else self.owner
            return follow(owner, self.steps)
        except (LookupError, AttributeError, TypeError, ValueError):
            return MISSING

    def __str__(self) -> str:
        steps = [
            f".{step.name}" if isinstance(step, Attribute) else f"[{step!r}]" for step in self.steps
        ]
        owner = self.owner if self.is_of_call else f"a {type(self.owner).__name__} outside"
        return f"{owner}{''.join(steps)}"


class Places:
    """Where what a function reaches lies: objects of the call, and containers, which may be others in another call."""

    def __init__(self) -> None:
        #: Whether objects are among the arguments, of which each call has its own.
        self.has_objects = False
        #: Of objects of the call, by their ids.
        self.of_call: dict[int, Place] = {}
        self._others: dict[int, Place] = {}
        #: What objects of the call lie at, or are reached by, in two ways.
        self._ties: list[tuple[Place, Place]] = []
        #: Where containers lie as well, by their ids.
        self._aliases: defaultdict[int, list[Place]] = defaultdict(list)

    def clear(self) -> None:
        """Let go of what lies elsewhere than in the call."""
        self._others, self._aliases = {}, defaultdict(list)

    def at(self, owner: object, steps: tuple[object, ...]) -> Place:
        """The place at these steps from an owner, from an argument if that is of the call."""
        known = self.of_call.get(id(owner))
        return Place(owner, steps) if known is None else Place(known.owner, known.steps + steps)

    def add(self, value: object, place: Place) -> None:
        """Take note of where an object lies."""
        if place.is_of_call and _is_made_by_calls(value):
            self.of_call[id(value)] = place
        elif self.has_objects or isinstance(value, KINDS):
            self._others[id(value)] = place

    def add_another(self, value: object, place: Place) -> None:
        """Take note of another place of an object."""
        if self.has_objects and _has_identity(value):
            self.tie(value, place)
        if isinstance(value, KINDS):
            first = self._others.setdefault(id(value), place)
            if not first.matches(place):
                self._aliases[id(value)].append(place)

    def tie(self, value: object, place: Place) -> None:
        """Have every call find one object at the first place of this one and at another, if either is of the call."""
        first = self.of_call.get(id(value)) or self._others.get(id(value)) or Place(value, ())
        if first.is_of_call and place.is_of_call:
            is_new = first != place
        else:
            is_new = first.is_of_call or place.is_of_call
        if is_new:
            self._ties.append((first, place))

    def of(self, value: object) -> Place | None:
        """Where a call finds an object of its own, or the container that is there by then."""
        place = self.of_call.get(id(value))
        if place is None and isinstance(value, KINDS):
            place = self._others.get(id(value))
        return place

    def identities(self, seen: Mapping[int, object], located: Iterable[int]) -> Identities:
        """Which of the objects `seen`, by ids, are one by several ways, and which are not to be others that are alike.

        So are the containers that calls find at a place, by these ids.
        """
        ties = [*self._ties]
        for key in self._aliases.keys() & {*located}:
            first = self._others[key]
            ties += [(first, one) for one in self._aliases[key]]
        if not self.has_objects:
            return Identities(ties)
        kinds = {key: id(type(value)) for key, value in seen.items() if _has_identity(value)}
        counts = Counter(kinds.values())
        of_call = {key for key, kind in kinds.items() if key in self.of_call and counts[kind] > 1}
        alike = {kinds[key] for key in of_call}
        others = {key for key, kind in kinds.items() if key not in self.of_call and kind in alike}
        return Identities(ties, [self.of_call[key] for key in of_call], frozenset(others))


def _is_made_by_calls(value: object) -> bool:
    """Whether another call may have one of its own that is equal."""
    if type(value) is types.FunctionType:
        return is_object(value)
    return not issubclass(type(value), _SAME_EVERYWHERE)


def _has_identity(value: object) -> bool:
    """Whether it matters which of two equal objects it is."""
    is_value = issubclass(type(value), (tuple, frozenset, torch.SymInt, torch.SymFloat))
    return not is_value and _is_made_by_calls(value)


@dataclass(frozen=True, slots=True, eq=False)
class Identities:
    """What is one object, and what is not, in every call of an entry.

    `ties` pairs places of one object; `apart` are places of different ones, of which none is among `others`, the ids
    of what the function reaches by itself.
    """

    ties: Sequence[tuple[Place, Place]] = ()
    apart: Sequence[Place] = ()
    others: frozenset[int] = frozenset()

    def missed(self, objects: Mapping[int, object]) -> str:
        """What is otherwise in a call with these objects among its arguments, in words; empty if nothing is."""
        for one, two in self.ties:
            if one.fetch(objects) is not two.fetch(objects):
                return f"{one} and {two} (from one object to two)"
        met: dict[int, Place] = {}
        for place in self.apart:
            found = id(place.fetch(objects))
            if found in self.others:
                return f"{place} (to an object that the function reaches by itself)"
            if met.setdefault(found, place) is not place:
                return f"{met[found]} and {place} (from two objects to one)"
        return ""

    def add_to(self, root: Any, nodes: Sequence[Any], hold: Callable[[Any], bool]) -> None:
        """Have a tree ask for it: of the `nodes` of the places apart themselves, for ties by `hold` at the root."""
        label = ["which objects are one"]
        if self.ties:
            root.add_lambda_guard(hold, label, None)
        if len(nodes) > 1:
            internals.add_all_different(root, nodes, hold, label)
        for node in nodes if self.others else ():
            node.add_lambda_guard(lambda value: id(value) not in self.others, label, None)
