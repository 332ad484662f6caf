"""Which places of a call hold one object, and which hold different ones: `is` tells, and a write reaches all of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from switchgear import torch_private as internals
from switchgear.capture.signature import Argument, Attribute, follow
from switchgear.features.python_state.holders import MISSING


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
