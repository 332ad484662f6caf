"""Code that ran though nothing that was looked into led to it: by a computed name, from C, for what was made inside.

What it has read is noted afterwards, where that is as it was; where it may not be, the function is refused.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from switchgear.errors import Unsupported
from switchgear.features.python_state import user_objects
from switchgear.features.python_state.frozen import is_atom
from switchgear.features.python_state.reached import WRITTEN_IN_C, Reached

_TORCH = str(Path(torch.__file__).parent)
#: What another call finds as this one did, if it is the same object.
_SETTLED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)

_OF_CLASSES = (*_SETTLED, classmethod, staticmethod, property, *WRITTEN_IN_C)


def note_unforeseen(reached: Reached, ran: Mapping[int, types.CodeType]) -> None:
    """Take note of the global variables that such code has read.

    Raises `Unsupported` if it writes to one, or reads what may have changed since: a container, an object, a variable
    that functions share.
    """
    for code in _unforeseen(reached.codes, ran):
        names, module = user_objects.globals_in(code), _module(code.co_filename)
        if module is None and not names <= vars(builtins).keys():
            _refuse(code, "has global variables")
        if user_objects.writes_globals(code):
            _refuse(code, "writes to a global variable")
        space = {} if module is None else vars(sys.modules[module])
        for name in names & space.keys():
            _note(reached, code, space, name, space[name])


def _unforeseen(
    known: Mapping[int, types.CodeType], ran: Mapping[int, types.CodeType]
) -> Iterator[types.CodeType]:
    others = [code for key, code in ran.items() if key not in known and _is_users(code.co_filename)]
    inner = {part for key, code in known.items() if key in ran for part in _inside(code)}
    for code in others:
        if id(code) in inner or code.co_name == "<module>":
            continue
        if {*code.co_freevars} - {"__class__"}:
            _refuse(code, "shares variables with other functions")
        yield code


@functools.cache
def _inside(code: types.CodeType) -> frozenset[int]:
    parts = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(map(id, parts)).union(*map(_inside, parts))


def _note(
    reached: Reached, code: types.CodeType, space: dict[str, object], name: str, value: object
) -> None:
    if not (is_atom(value) or isinstance(value, _SETTLED)):
        _refuse(code, f"reads {name}, a {type(value).__name__}")
    reached.note_afterwards(space, name, value, f"{space.get('__name__')}.{name}")
    if not isinstance(value, (types.ModuleType, type)) or not user_objects.is_users_space(value):
        return
    for attribute in user_objects.names_in(code) & vars(value).keys():
        held = vars(value)[attribute]
        if not (is_atom(held) or isinstance(held, _OF_CLASSES)):
            _refuse(code, f"reads {name}.{attribute}, a {type(held).__name__}")
        reached.note_afterwards(value, attribute, held, f"{name}.{attribute}")


def _refuse(code: types.CodeType, what: str) -> None:
    raise Unsupported(
        f"{code.co_qualname} ran though nothing named it beforehand, and {what}; pass what it needs as an argument"
    )


@functools.cache
def _is_users(file: str) -> bool:
    name = _module(file)
    if name is None:  # of dataclasses and the like, where it is no file
        return file == "<stdin>" or (file[:1] != "<" and not file.startswith(_TORCH))
    is_standard = name.partition(".")[0] in sys.stdlib_module_names and name != "__main__"
    return user_objects.is_users(name) and not is_standard


def _module(file: str) -> str | None:
    """The name of the module that was loaded from a file."""
    if _FILES.get(file) not in sys.modules:
        for name, module in [*sys.modules.items()]:
            _FILES[getattr(module, "__dict__", {}).get("__file__")] = name
    return _FILES.get(file)


#: The names of modules by their files.
_FILES: dict[object, str] = {}
