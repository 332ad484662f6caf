"""Which reads were made: of what code may read, what the code that ran has read, or runs later."""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from switchgear.errors import Unsupported
from switchgear.features.python_state.frozen import NUMBER, same
from switchgear.features.python_state.holders import MISSING, Items, Slots
from switchgear.features.python_state.reached import Reached, own_dict
from switchgear.features.python_state.reads import Read
from switchgear.features.python_state.streams import OF_CONTEXT
from switchgear.features.python_state.user_objects import attributes_set, names_in

#: Owners that many lead to: what is read of them counts where one does.
_SHARED = (type, *OF_CONTEXT)


def reads_made(reached: Reached, ran: Mapping[int, types.CodeType] | None) -> list[Read]:
    """Of what code may read, what the code that ran has read: of classes and streams, those that it has come by."""
    reads, links = reached.reads, reached.links  # under None are the roots
    if ran is None:
        return [*reads.values()]
    made_by = _made_by(reached, ran)
    made = {key: read for key, read in reads.items() if read.code is None or made_by(read)}
    by_owner: dict[int, list[object]] = {}
    pending: list[Any] = [None]
    for key, read in made.items():
        if issubclass(read.kind, _SHARED):
            by_owner.setdefault(key[0], []).append(key)
        else:
            pending.append(key)
    live: set[object] = set()
    while pending:
        place = pending.pop()
        if place not in live:
            live.add(place)
            pending += [*links.get(place, ()), *by_owner.get(place, ())]
    return [
        read
        for key, read in made.items()
        if key in live or (read.code is None and not issubclass(read.kind, OF_CONTEXT))
    ]


def note_later(reached: Reached, later: Mapping[int, types.CodeType]) -> None:
    """Note which reads this code makes, and read what it names of the objects that it comes by.

    Raises `Unsupported` for a number that is symbolic by now.
    """
    if not later:
        return
    names = frozenset().union(*map(_names_used, later.values()))
    made_by = _made_by(reached, later)
    for read in [*reached.reads.values()]:
        if read.code is None or not made_by(read):
            continue
        read.is_later = True
        if read.value is NUMBER:
            raise Unsupported(f"the backward of an autograd.Function reads {read.label}")
        is_space = isinstance(read.value, (types.FunctionType, types.ModuleType))
        own = {} if is_space else own_dict(read.now()) or {}
        for name in names & own.keys():
            reached.note_afterwards(own, name, own[name], f"{read.label}.{name}").is_later = True


def note_set(reached: Reached, codes: Iterable[types.CodeType]) -> None:
    """Take for read what code sets to what it is already, for no call sets it again."""
    names = frozenset().union(*map(attributes_set, codes))
    for holder in [*reached.holders.values()] if names else ():
        if isinstance(holder, (Items, Slots)) and not names.isdisjoint(holder.before):
            target = id(holder.target)
            unread = [
                name for name in names & holder.before.keys() if (target, name) not in reached.reads
            ]
            now = holder.content() if unread else {}
            for name in unread:
                value = holder.before[name]
                if same(now.get(name, MISSING), value):
                    label = f"{holder.label}.{name}"
                    reached.note_afterwards(holder.target, name, value, label)


def _made_by(reached: Reached, ran: Mapping[int, types.CodeType]) -> Callable[[Read], bool]:
    """What tells whether a read is made by one of these code objects."""
    names = frozenset().union(*map(_names_used, ran.values()))
    spaces = reached.names_in_spaces(ran)

    def is_made(read: Read) -> bool:
        if isinstance(read.code, str):
            return read.code in spaces.get(id(read.owner), names)
        return id(read.code) in ran

    return is_made


@cache
def _names_used(code: types.CodeType) -> frozenset[str]:
    """The names in a code object, and its strings, which may be names."""
    return frozenset(name for name in (*code.co_names, *code.co_consts) if type(name) is str)


def run_later(
    codes: Mapping[int, types.CodeType], ran: Iterable[types.CodeType]
) -> dict[int, types.CodeType]:
    """The code of backwards that run when the function has, for their forwards did, and of what they name."""
    by_name: defaultdict[str, list[types.CodeType]] = defaultdict(list)
    for code in codes.values():
        by_name[code.co_name].append(code)
    left = {code.co_qualname for code in by_name["forward"]}.difference(
        code.co_qualname for code in ran
    )
    found: dict[int, types.CodeType] = {}
    pending = [
        code
        for code in by_name["backward"]
        if code.co_qualname.removesuffix("backward") + "forward" not in left
    ]
    while pending:
        code = pending.pop()
        if id(code) not in found:
            found[id(code)] = code
            pending += [one for name in names_in(code) for one in by_name.get(name, ())]
    return found
