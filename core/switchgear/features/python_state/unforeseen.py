"""Code that ran though nothing that was looked into led to it: by a computed name, from C, for what was made inside.

What it has read is noted afterwards, where that is as it was; where it may not be, the function is refused.
"""

from __future__ import annotations

import builtins
import functools
import gc
import logging
import re
import sys
import types
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from switchgear.capture.user_code import is_installed
from switchgear.errors import Unsupported
from switchgear.features.python_state import user_objects
from switchgear.features.python_state.frozen import is_atom
from switchgear.features.python_state.holders import Variable
from switchgear.features.python_state.reached import METHODS, WRITTEN_IN_C, Reached

_TORCH = str(Path(torch.__file__).parent)
#: Where the standard library lies, whatever stands in `sys.modules` for its files.
_STANDARD = str(Path(functools.__file__).parent)
#: What another call finds as this one did, if it is the same object.
_SETTLED = (
    *(*METHODS, *WRITTEN_IN_C, types.BuiltinFunctionType, types.ModuleType, type),
    *(logging.Logger, re.Pattern),
)
#: What gives variables by names that are computed.
_UNKNOWN = frozenset({"globals", "eval", "f_globals", "f_locals"})
#: Classes of the standard library, written in C, and those of their methods that ask for the time.
_CLOCKS, _ASKING = frozenset({"datetime", "date"}), frozenset({"now", "utcnow", "today"})


def note_unforeseen(
    reached: Reached, ran: Mapping[int, types.CodeType], packages: tuple[str, ...]
) -> None:
    """Take note of the global variables that such code has read, except of `packages`, each with a dot at its end.

    Those that look for modules count among these: what is imported late runs their code, as it does editable installs'.

    Raises `Unsupported` if it writes to one, or reads what may have changed since: a container, an object.
    """
    finders = [getattr(one, "__module__", "").partition(".")[0] for one in sys.meta_path]
    apart = (*packages, *(f"{name}." for name in {*finders} - {"__main__"}))
    codes = _unforeseen(reached.codes, ran, apart)
    functions = gc.get_referrers(*codes) if codes else ()
    for function in functions:
        if isinstance(function, types.FunctionType):
            _note_function(reached, function)


def refuse_unknown_reads(ran: Iterable[types.CodeType]) -> None:
    """Refuse what reads variables by no name that is known before, and what asks for the time in C."""
    for code in ran:
        if _CLOCKS.intersection(code.co_names) and _ASKING.intersection(code.co_names):
            what = f"{code.co_name} asks what time it is, which the first call alone would do"
            raise Unsupported(f"{what}; ask outside of the function")
        is_own = is_users_file(code.co_filename) and code.co_name != "__hash__"
        if "id" in code.co_names and is_own and "id" in user_objects.globals_in(code):
            what = f"{code.co_name} asks for id(), which of an argument is that of a stand-in"
            raise Unsupported(f"{what}; compare by `is`")
        named = _UNKNOWN.intersection(code.co_names)
        if "globals" in named or (named and is_users_file(code.co_filename)):
            asked = sorted(named - {"eval"} or named & user_objects.globals_in(code))
            if asked:
                raise Unsupported(
                    f"{code.co_name} uses {asked[0]}, and may read what no guard can tell; name what it reads",
                    splits=False,
                )


def _unforeseen(
    known: Mapping[int, types.CodeType],
    ran: Mapping[int, types.CodeType],
    packages: tuple[str, ...],
) -> list[types.CodeType]:
    others = [
        code for key, code in ran.items() if key not in known and is_users_file(code.co_filename)
    ]
    outer = [*others, *(code for key, code in known.items() if key in ran)]
    inner = {part for code in outer for part in _inside(code)}
    inner |= {id(getattr(warnings.showwarning, "__code__", None))}  # runs for any warning
    return [
        code
        for code in others
        if id(code) not in inner
        and not f"{_module(code.co_filename)}.".startswith(packages)
        and (_variables(code) or not user_objects.globals_in(code) <= vars(builtins).keys())
    ]


@functools.cache
def _inside(code: types.CodeType) -> frozenset[int]:
    parts = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(map(id, parts)).union(*map(_inside, parts))


def _variables(code: types.CodeType) -> set[str]:
    return {*code.co_freevars} - {"__class__"}


def _note_function(reached: Reached, function: types.FunctionType) -> None:
    code, space = function.__code__, function.__globals__
    if user_objects.writes_globals(code):
        _refuse(code, "writes to a global variable")
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        for key, held in Variable(cell, name).before.items() if name in _variables(code) else ():
            _note(reached, code, cell, key, held, name)
    for name in user_objects.globals_in(code) & space.keys():
        value = space[name]
        _note(reached, code, space, name, value, f"{function.__module__}.{name}")
        if isinstance(value, (types.ModuleType, type)) and user_objects.is_users_space(value):
            for attribute in user_objects.names_in(code) & vars(value).keys():
                label = f"{name}.{attribute}"
                _note(reached, code, value, attribute, vars(value)[attribute], label)


def _note(
    reached: Reached, code: types.CodeType, owner: object, key: str, value: object, label: str
) -> None:
    if not (is_atom(value) or isinstance(value, _SETTLED)):
        _refuse(code, f"reads {label} ({type(value).__name__})")
    reached.note_afterwards(owner, key, value, label)


def _refuse(code: types.CodeType, what: str) -> None:
    raise Unsupported(
        f"{code.co_qualname} ran though nothing named it beforehand, and {what}; pass what it needs as an argument"
    )


@functools.cache
def is_users_file(file: str) -> bool:
    """Whether code of that file is the user's own."""
    if file.startswith(_STANDARD) and not is_installed(file):
        return False
    name = _module(file)
    if name is None:  # of dataclasses and the like, where it is no file
        return file == "<stdin>" or (file[:1] != "<" and not file.startswith(_TORCH))
    return user_objects.is_users_own(name)


def _module(file: str) -> str | None:
    """The name of the module that was loaded from a file."""
    if _FILES.get(file) not in sys.modules:
        for name, module in [*sys.modules.items()]:
            _FILES[getattr(module, "__dict__", {}).get("__file__")] = name
    return _FILES.get(file)


#: The names of modules by their files.
_FILES: dict[object, str] = {}
