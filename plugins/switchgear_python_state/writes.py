"""Writes: values stored in Python objects by a function, and stored again by every call of the trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from switchgear_python_state.frozen import is_atom, same
from switchgear_python_state.holders import (
    MISSING,
    Content,
    Elements,
    Holder,
    Items,
    Members,
)
from switchgear_python_state.reached import Reached
from switchgear_python_state.rebuilding import (
    Packing,
    Results,
    Template,
    key_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """The changes of one holder: items set, items removed, elements appended; or its whole content.

    With a `place`, by number, the changes apply to the object at that place.
    """

    holder: Holder
    stored: tuple[tuple[Any, Template], ...] = ()
    removals: tuple[object, ...] = ()
    appended: tuple[Template, ...] = ()
    is_all: bool = False
    place: int | None = None

    def do(self, results: Results) -> None:
        """Apply the changes in a call."""
        holder = self.holder
        target = holder.target if self.place is None else results.located[self.place]
        if self.appended:
            target.extend([item(results) for item in self.appended])
            return
        if self.place is not None:
            holder = type(holder)(target, holder.label)
        content = {} if self.is_all else holder.content()
        for key in self.removals:
            content.pop(key, None)
        for key, template in self.stored:
            content[key] = template(results)
        holder.put(content)


def changes(reached: Reached, packing: Packing) -> Iterator[Write]:
    """Yield the function's changes to reached objects."""
    for holder in reached.holdings.changed():
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
    if isinstance(holder, Items) and [key for key in now if key in before] != [key for key in before if key in now]:
        stored = tuple((key, _pack(holder, key, value, packing)) for key, value in now.items())
        return Write(holder, stored, is_all=True)
    stored = tuple(
        (key_of(key), _pack(holder, key, value, packing))
        for key, value in now.items()
        if not _is_kept(value, before.get(key, MISSING), packing)
    )
    removals = tuple(key for key in before if key not in now)
    return Write(holder, stored, removals) if stored or removals else None


def _elements(holder: Elements, now: Content, packing: Packing) -> Write | None:
    before = holder.at_first
    is_longer = len(now) >= len(before) and getattr(holder.target, "maxlen", None) is None
    if is_longer and all(_is_kept(now[place], before[place], packing) for place in before):
        new = tuple([_pack(holder, "", now[place], packing) for place in [*now][len(before) :]])
        return Write(holder, appended=new) if new else None
    return Write(
        holder,
        tuple((place, _pack(holder, place, value, packing)) for place, value in now.items()),
        is_all=True,
    )


def _pack(holder: Holder, key: object, value: object, packing: Packing) -> Template:
    where = holder.label if isinstance(holder, (Elements, Members)) else f"{holder.label}.{key}"
    return packing.pack(value, where)


def _is_kept(value: object, before: object, packing: Packing) -> bool:
    """Check whether a place holds its former object, bare or wrapped: `self.steps += 1` assigns the same buffer."""
    if value is before or (is_atom(value) and same(value, before)):
        return True
    wrapper = packing.recorder.inputs.wrapper_of(before)
    return wrapper is not None and wrapper is value
