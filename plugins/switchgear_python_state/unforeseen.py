"""Refusals of code that ran although no inspected code names it: called from C, or of a class in a container."""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Iterable, Mapping

from switchgear_core.errors import Unsupported
from switchgear_core.record.user_code import is_of_pytorch, is_standard
from switchgear_python_state import user_objects
from switchgear_python_state.reached import Reached

#: Types whose objects are unchanged in another call if their identity is.
_SPACES = (type, types.ModuleType)
_SETTLED = (*_SPACES, types.FunctionType, types.BuiltinFunctionType)
#: Names that give access to variables by computed names.
_UNKNOWN = frozenset({"globals", "eval", "f_globals", "f_locals"})


def refuse_unforeseen(reached: Reached, ran: Mapping[int, types.CodeType], packages: tuple[str, ...]) -> None:
    """Raise `Unsupported` if unforeseen code reads variables. Code of `packages`, with trailing dots, is exempt.

    Packages of module finders are exempt too: a late import runs their code, as with editable installs.
    """
    finders = [getattr(finder, "__module__", "").partition(".")[0] for finder in sys.meta_path]
    prefixes = (*packages, *(f"{name}." for name in {*finders} - {"__main__"}))
    codes = reached.codes
    others = [code for key, code in ran.items() if key not in codes and _is_users(reached, code)]
    outer = [*others, *(code for key, code in codes.items() if key in ran)]
    inner = {part for code in outer for part in _inside(code)}
    inner |= {id(getattr(warnings.showwarning, "__code__", None))}  # runs for any warning
    for code in others:
        module = reached.started[id(code)].get("__name__")
        if id(code) in inner or f"{module}.".startswith(prefixes):
            continue
        if {*code.co_freevars} - {"__class__"} or _reads(reached, code):
            raise Unsupported(
                f"{code.co_qualname} ran though nothing named it beforehand, and may read values that no guard "
                "checks; pass it as an argument, or name it"
            )


def refuse_unknown_reads(reached: Reached, ran: Iterable[types.CodeType]) -> None:
    """Refuse code that reads variables by computed names."""
    for code in ran:
        is_own = _is_users(reached, code)
        is_asked = "id" in code.co_names and "id" in user_objects.globals_in(code)
        if is_own and is_asked and code.co_name != "__hash__":
            problem = f"{code.co_name} asks for id(), which of an argument is that of a stand-in"
            raise Unsupported(f"{problem}; compare by `is`")
        unknown_names = _UNKNOWN.intersection(code.co_names)
        if "globals" in unknown_names or (unknown_names and is_own):
            names = sorted(unknown_names - {"eval"} or unknown_names & user_objects.globals_in(code))
            if names:
                raise Unsupported(
                    f"{code.co_name} uses {names[0]}, and may read values that no guard checks; name them",
                    splits=False,
                )


@functools.cache
def _inside(code: types.CodeType) -> frozenset[int]:
    parts = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(map(id, parts)).union(*map(_inside, parts))


def _reads(reached: Reached, code: types.CodeType) -> bool:
    """Check whether code reads a global variable whose content may change; record the other variables."""
    space = reached.started[id(code)]
    for name in user_objects.globals_in(code) & space.keys():
        value = space[name]
        attrs = vars(value) if isinstance(value, _SPACES) and user_objects.is_users_space(value) else ()
        if not isinstance(value, _SETTLED) or not user_objects.names_in(code).isdisjoint(attrs):
            return True
        reached.note_afterwards(space, name, value, f"{space.get('__name__')}.{name}")
    return False


def _is_users(reached: Reached, code: types.CodeType) -> bool:
    """Check whether started code is the user's own; generated code, as of dataclasses, has no file."""
    file, name = code.co_filename, reached.started[id(code)].get("__name__")
    if (file[:1] == "<" and file != "<stdin>") or is_standard(file) or is_of_pytorch(file):
        return False
    return name is None or user_objects.is_users_own(str(name))
