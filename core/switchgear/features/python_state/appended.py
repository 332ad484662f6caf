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
from switchgear.features.python_state.reads import ITSELF, Read
from switchgear.features.python_state.rebuilding import Packing
from switchgear.features.python_state.unforeseen import is_users_file
from switchgear.features.python_state.writes import Write

#: What gives all attributes and variables, or those of names that are computed.
_BY_ANY_NAME = frozenset(
    {
        *("getattr", "vars", "locals", "__dict__", "attrgetter", "__getattribute__"),
        *("deepcopy", "asdict", "astuple", "dumps", "state_dict"),
    }
)
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_ITEM = "BINARY_SUBSCR"


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
    used: set[str] = set()
    for code in codes if changed else ():
        names = _used_otherwise(code)
        # PyTorch's own looks so at nothing but its own, such as parts of a ParameterDict
        used |= names if is_users_file(code.co_filename) else names - _BY_ANY_NAME
    for read, value in changed:
        name = read.label if read.kind is types.CellType else read.key
        if name in ("__defaults__", "__kwdefaults__", ITSELF):
            continue  # code names the parameters
        if used.isdisjoint({name, *_BY_ANY_NAME}):
            read.unasked = value


def _forgotten(frozen: object, now: Any, appended: Set[int]) -> object:
    """A frozen value, now this, without what lists in it hold that are appended to."""
    is_list = type(now) in (list, deque)
    if not isinstance(frozen, Contents) or not (is_list or type(now) in (tuple, dict, defaultdict)):
        return frozen
    held = now if frozen.keys is None else [now.get(key) for key in frozen.keys]
    items = tuple([_forgotten(*pair, appended) for pair in zip(frozen.items, held, strict=False)])
    is_inside = any(map(operator.is_not, items, frozen.items))
    if is_list and id(now) in appended:
        return frozen if is_inside else Instance(type(now))
    return replace(frozen, items=items) if is_inside else frozen


@functools.cache
def _used_otherwise(code: types.CodeType) -> frozenset[str]:
    """The names of what a code object does more with than append to it, or an item of it, and what may be one."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    found = {value for value in code.co_consts if isinstance(value, str)}
    lines = [*dis.get_instructions(code)]
    for place, line in enumerate(lines):
        if line.opname[:4] == "LOAD" and not _is_appended_to(lines, place):
            second = [one.opname for one in lines[place + 2 : place + 3]]
            if line.argval != "getattr" or second != ["LOAD_CONST"]:
                found.add(str(line.argval))
    return frozenset(found).union(*map(_used_otherwise, inner))


def _is_appended_to(lines: Sequence[dis.Instruction], place: int) -> bool:
    """Whether what is loaded at a place, or an item of it at any depth, is appended to and nothing else."""
    above = 0  # how much lies on the stack above it: parts of the key of an item
    for later in range(place + 1, len(lines)):
        line = lines[later]
        if above == 0 and line.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            return line.argval in ("append", "extend")
        if line.opname.startswith(("COPY", "SWAP")) or line.opcode in _JUMPS:
            return False
        is_loaded = line.opname[:4] == "LOAD" or line.opname == "PUSH_NULL"
        before, above = above, above + dis.stack_effect(line.opcode, line.arg)
        if above < before and above <= 0 and not (above == 0 and line.opname == _ITEM):
            return False
        if before == 0 and not is_loaded:
            return False
    return False
