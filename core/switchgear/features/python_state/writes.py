"""Writes: what a function stored in Python's objects, done again by every call of the trace."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from switchgear.errors import Unsupported
from switchgear.features.python_state.frozen import is_atom, same
from switchgear.features.python_state.holders import (
    MISSING,
    Array,
    Content,
    Elements,
    Holder,
    Items,
    Members,
)
from switchgear.features.python_state.reached import Reached
from switchgear.features.python_state.rebuilding import (
    Packing,
    Results,
    Template,
    build,
    key_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """What becomes of one holder: items set, those removed, elements added at the end; or all of its content.

    Where it has a `place`, by number, it is of what lies there.
    """

    holder: Holder
    stored: tuple[tuple[Any, Template], ...] = ()
    removed: tuple[object, ...] = ()
    appended: tuple[Template, ...] = ()
    is_all: bool = False
    place: int | None = None

    def matches(self, other: Write) -> bool:
        """Whether it does the same."""
        is_same_holder = self.holder.target is other.holder.target
        return (is_same_holder and self.place == other.place) and (
            (self.stored, self.removed, self.appended, self.is_all)
            == (other.stored, other.removed, other.appended, other.is_all)
        )

    def do(self, results: Results) -> None:
        """Write for a call."""
        holder = self.holder
        target = holder.target if self.place is None else results.located[self.place]
        if self.appended:
            target.extend([build(item, results) for item in self.appended])
            return
        if self.place is not None:
            holder = type(holder)(target, holder.label)
        content = {} if self.is_all else holder.content()
        for key in self.removed:
            content.pop(key, None)
        for key, template in self.stored:
            content[key] = build(template, results)
        holder.put(content)


def changes(reached: Reached, packing: Packing) -> Iterator[Write]:
    """What the function has changed in what it reached."""
    for holder in reached.held.changed():
        if isinstance(holder, Array):
            raise Unsupported(
                f"the function writes to {holder.label}, an array of NumPy's; use a tensor"
            )
        write = _write(holder, packing)
        for key, _ in write.stored if write is not None and holder.hides_absence else ():
            if key not in holder.at_first:
                reached.note_added(holder, key)
        if write is not None:
            place = packing.locate(holder.target)
            yield write if place is None else replace(write, holder=holder.bare(), place=place)


def _write(holder: Holder, packing: Packing) -> Write | None:
    now, before = holder.content(), holder.at_first
    if isinstance(holder, Elements):
        return _elements(holder, now, packing)
    if isinstance(holder, Items) and [key for key in now if key in before] != [
        key for key in before if key in now
    ]:
        stored = tuple((key, _pack(holder, key, value, packing)) for key, value in now.items())
        return Write(holder, stored, is_all=True)
    stored = tuple(
        (key_of(key), _pack(holder, key, value, packing))
        for key, value in now.items()
        if not _is_kept(value, before.get(key, MISSING), packing)
    )
    removed = tuple(key for key in before if key not in now)
    return Write(holder, stored, removed) if stored or removed else None


def _elements(holder: Elements, now: Content, packing: Packing) -> Write | None:
    values, before = [*now.values()], [*holder.at_first.values()]
    most = holder.target.maxlen if isinstance(holder.target, deque) else None
    count = _appended(values, before, most, packing)
    if count is not None:
        new = tuple([_pack(holder, "", value, packing) for value in values[len(values) - count :]])
        return Write(holder, appended=new) if count else None
    return Write(
        holder,
        tuple((place, _pack(holder, place, value, packing)) for place, value in now.items()),
        is_all=True,
    )


def _appended(
    values: list[Any], before: list[Any], most: int | None, packing: Packing
) -> int | None:
    """How many elements were appended, of which the last `most` are there; None if more than that has changed."""
    least = max(len(values) - len(before), 0)
    for count in range(least, len(values) + 1 if most is not None else least + 1):
        expected = [*before, *values[len(values) - count :]][-(most or len(before) + count) :]
        if len(expected) == len(values) and all(
            _is_kept(*pair, packing) for pair in zip(values, expected, strict=True)
        ):
            return count
    return None


def _pack(holder: Holder, key: object, value: object, packing: Packing) -> Template:
    where = holder.label if isinstance(holder, (Elements, Members)) else f"{holder.label}.{key}"
    return packing.pack(value, where)


def _is_kept(value: object, before: object, packing: Packing) -> bool:
    """Whether a place holds what it did, or a wrapper of that: `self.steps += 1` assigns the buffer it wrote to."""
    if value is before or (is_atom(value) and same(value, before)):
        return True
    known = packing.recorder.inputs.wrapper_of(before)
    return known is not None and known is value
