"""Lists that code appends to and does nothing else with, such as a log of losses: no call depends on what they hold.

Neither by what is seen of its code, nor by a second capture, when they hold something else and all comes out the same.
"""

from __future__ import annotations

import dis
import functools
import operator
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from switchgear.features.python_state.frozen import Contents, Instance
from switchgear.features.python_state.reads import Read
from switchgear.features.python_state.rebuilding import Packing
from switchgear.features.python_state.writes import Write

#: What gives all attributes and variables, or those of names that are computed.
_BY_ANY_NAME = (
    *("getattr", "vars", "__dict__", "attrgetter", "__getattribute__"),
    *("copy", "deepcopy", "asdict", "astuple", "replace", "dumps", "state_dict"),
)
#: Of what is looked up in a container.
_INDICES = ("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_SMALL_INT")


def note_appended(
    reads: Sequence[Read],
    writes: Iterable[Write],
    packing: Packing,
    arguments: Mapping[int, object],
    codes: Iterable[types.CodeType],
) -> None:
    """Have reads know how to ask no call what such lists hold.

    `codes` is the user's code that ran, `arguments` are objects of the call.
    """
    located = [*packing.places]
    appended = {
        id(write.holder.target) if write.place is None else located[write.place]
        for write in writes
        if write.appended
    }
    changed = [
        (read, value)
        for read in (reads if appended else ())
        if (value := _forgotten(read.value, read.now(arguments), appended)) is not read.value
    ]
    used = frozenset().union(*map(_used_otherwise, codes)) if changed else frozenset()
    for read, value in changed:
        name = read.label if read.kind is types.CellType else read.key
        if used.isdisjoint({name, *_BY_ANY_NAME}):
            read.unasked = value


def _forgotten(frozen: object, now: Any, appended: Set[int]) -> object:
    """A frozen value, now this, without what lists hold that are appended to, or such lists in a dict."""
    if id(now) in appended and type(now) in (list, deque):
        return Instance(type(now))
    if isinstance(frozen, Contents) and type(now) in (dict, defaultdict):
        held = zip(frozen.keys or (), frozen.items, strict=True)
        items = tuple([_forgotten(item, now.get(key), appended) for key, item in held])
        if any(map(operator.is_not, items, frozen.items)):
            return replace(frozen, items=items)
    return frozen


@functools.cache
def _used_otherwise(code: types.CodeType) -> frozenset[str]:
    """The names of what a code object does more with than append to it, or an item of it, and what may be one."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    found = {value for value in code.co_consts if isinstance(value, str)}
    lines = [*dis.get_instructions(code)]
    for place, line in enumerate(lines):
        if line.opname[:4] == "LOAD":
            index, item, *_ = following = (*lines[place + 1 : place + 4], line, line)
            is_item = index.opname in _INDICES and item.opname.startswith("BINARY")
            if following[2 * is_item].argval not in ("append", "extend"):
                found.add(str(line.argval))
    return frozenset(found).union(*map(_used_otherwise, inner))
