"""Reads that count: code names more than it reads, so a read counts if its code ran or runs later."""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

from switchgear_core.errors import Unsupported
from switchgear_python_state.frozen import FLOAT, NUMBER, same
from switchgear_python_state.holders import (
    MISSING,
    ClassAttributes,
    Items,
    Slots,
    Variables,
)
from switchgear_python_state.reached import Reached, own_dict
from switchgear_python_state.reads import Read
from switchgear_python_state.user_objects import attributes_set, names_in


def reads_made(reached: Reached, ran: Container[int]) -> list[Read]:
    """Return the reads by code that ran."""
    return [read for read in reached.reads.values() if read.code is None or id(read.code) in ran]


def note_later(reached: Reached, later: Mapping[int, types.CodeType]) -> None:
    """Mark the reads of code that runs later, and record the attributes of reached objects named in the code.

    Raises `Unsupported` for a number already made symbolic.
    """
    names = frozenset().union(*map(names_in, later.values()))
    for read in [*reached.reads.values()] if later else ():
        is_named = isinstance(reached.holders.get(id(read.owner)), (Variables, ClassAttributes))
        if id(read.code) not in later and not (is_named and read.key in names):
            continue
        read.is_later = True
        if read.value is NUMBER or read.value is FLOAT:
            raise Unsupported(f"the backward of an autograd.Function reads {read.label}")
        is_space = isinstance(read.value, (types.FunctionType, types.ModuleType))
        attrs = {} if is_space else own_dict(read.now()) or {}
        for key in names & attrs.keys():
            reached.note_afterwards(attrs, key, attrs[key], f"{read.label}.{key}").is_later = True


def note_set(reached: Reached, codes: Iterable[types.CodeType]) -> None:
    """Record an attribute set to its present value as a read: no call sets the attribute again."""
    names = frozenset().union(*map(attributes_set, codes))
    for holder in [*reached.holders.values()] if names else ():
        if isinstance(holder, (Items, Slots)) and not names.isdisjoint(holder.before):
            target = id(holder.target)
            unread = [name for name in names & holder.before.keys() if (target, name) not in reached.reads]
            now = holder.content() if unread else {}
            for name in unread:
                value = holder.before[name]
                if same(now.get(name, MISSING), value):
                    label = f"{holder.label}.{name}"
                    reached.note_afterwards(holder.target, name, value, label)


def start_later(reached: Reached) -> dict[int, types.CodeType]:
    """Start the code of backwards, which run later, and of functions named there. Return the code by id."""
    codes: dict[int, types.CodeType] = {}
    while new := _run_later(reached).items() - codes.items():
        codes.update(new)
        for _, code in new:
            reached.start(code, {})
    return codes


def _run_later(reached: Reached) -> dict[int, types.CodeType]:
    """Return the code of reached backwards, and of functions named in the backwards, by id."""
    by_name: defaultdict[str, list[types.CodeType]] = defaultdict(list)
    for code in reached.codes.values():
        for name in {code.co_name, *reached.names_of(code)}:
            by_name[name].append(code)
    codes: dict[int, types.CodeType] = {}
    pending = [*by_name["backward"]]
    while pending:
        code = pending.pop()
        if id(code) not in codes:
            codes[id(code)] = code
            names = {*names_in(code), *code.co_freevars}
            pending += [target for name in names for target in by_name.get(name, ())]
    return codes
