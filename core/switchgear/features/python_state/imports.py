"""Modules that functions import where they run."""

from __future__ import annotations

import dis
import functools
import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

from switchgear.features.python_state import user_objects

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]


def imported_by(function: types.FunctionType) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The full names of the user's modules that a function imports, each with what it imports from there."""
    package = function.__globals__.get("__package__") or ""
    for level, name, names in _imports_in(function.__code__):
        try:
            full = importlib.util.resolve_name("." * level + name, package)
        except ImportError:  # eager raises it where the line runs
            continue
        if user_objects.is_users(full):
            yield full, names


def loaded(name: str) -> types.ModuleType | None:
    """The module of that name, if it is loaded."""
    module = sys.modules.get(name)
    return module if isinstance(module, types.ModuleType) else None


def is_being_loaded(space: dict[str, Any]) -> bool:
    """Whether a module of these global variables is, so that its code sets them."""
    return getattr(space.get("__spec__"), "_initializing", False)


@functools.cache
def _imports_in(code: types.CodeType) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """For each import of a code object, or of one inside of it, its level, the module's name, and the names taken."""
    found = []
    if _IMPORT_NAME in code.co_code[::2]:
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
            if step.opname == "IMPORT_NAME":
                found.append((level.argval, step.argval, names.argval or ()))
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return (*found, *(each for part in inner for each in _imports_in(part)))
