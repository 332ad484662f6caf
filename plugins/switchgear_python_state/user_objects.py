"""User objects: functions, classes and objects that a user may change; capture inspects them."""

from __future__ import annotations

import dis
import functools
import itertools
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from switchgear_core import own
from switchgear_frontend.known_calls import is_known, is_written_in_python, operations

#: Packages of the standard library whose functions and classes are inspected; `_FIXED` are assumed not to change.
_LOOKED_INTO = {"__main__", "argparse", "collections", "configparser", "weakref", "_weakrefset"}
_FIXED = sys.stdlib_module_names - _LOOKED_INTO | {
    *("torch", "functorch", "numpy", "scipy", "sympy", "mpmath", "networkx", "packaging"),
    *("tokenizers", "huggingface_hub", "safetensors", "typing_extensions"),
    *(*own.PACKAGES, __package__, "pluggy"),
}
#: Prefixes of modules in fixed packages that read attributes of the user's modules.
_MODULES = ("torch.nn.modules.", "torch.nn.utils.", "torch.optim.")
_LOADS = {dis.opmap["LOAD_GLOBAL"]: 1}
_BINDS = (
    *("STORE_GLOBAL", "DELETE_GLOBAL"),
    *("LOAD_NAME", "STORE_NAME", "LOAD_FROM_DICT_OR_GLOBALS"),  # in the bodies of classes
)
_IS, _IMPORT = dis.opmap["IS_OP"], dis.opmap["IMPORT_NAME"]
_OF_VARIABLES = dict.fromkeys([dis.opmap[name] for name in _BINDS if name in dis.opmap], 0)


@functools.cache
def is_users(name: str | None) -> bool:
    """Check whether the module `name` is the user's, or a layer of PyTorch."""
    if not isinstance(name, str):
        return False
    if name.startswith(_MODULES):
        return name != "torch.nn.modules.module"
    return name.partition(".")[0] not in _FIXED and name != "collections.abc"


def is_users_space(value: types.ModuleType | type) -> bool:
    """Check whether a module is a user's module, or a class is defined in a user's module."""
    return is_users(value.__name__ if isinstance(value, types.ModuleType) else value.__module__)


def is_users_function(value: types.FunctionType) -> bool:
    """Check whether a function is defined in a user's module, or in no module, as by `exec`."""
    name = value.__globals__.get("__name__")
    return name is None or is_users(name)


def is_users_class(kind: type) -> bool:
    """Check whether a class is written in Python, in a user's module."""
    return is_written_in_python(kind) and is_users(getattr(kind, "__module__", None))


def is_alive(kind: type) -> bool:
    """Check whether objects of a class hold state in C: queues, locks, connections, shared memory."""
    return not is_known(kind)


def is_lock(kind: type) -> bool:
    """Check whether a class is a lock class of the standard library."""
    return is_alive(kind) and hasattr(kind, "acquire")


def has_values(kind: type) -> bool:
    """Check whether a user's class has attributes shared by instances, other than functions and defaults of fields."""
    fields = getattr(kind, "__dataclass_fields__", ())
    return any(
        not (name[:2] == "__" or name in fields or callable(value) or hasattr(value, "__get__"))
        for base in kind.__mro__
        if is_users_class(base) and is_users_own(base.__module__)
        for name, value in vars(base).items()
    )


@functools.cache
def is_users_own(name: str | None) -> bool:
    """Check whether a module is the user's own, and not an inspected module of PyTorch or the standard library."""
    fixed = {"torch", *sys.stdlib_module_names} - {"__main__"}
    return is_users(name) and str(name).partition(".")[0] not in fixed


@functools.cache
def names_in(code: types.CodeType) -> frozenset[str]:
    """Return the names of global variables and attributes in a code object and nested ones, and possible names."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            names.add(constant)
    return frozenset(names)


@functools.cache
def globals_in(code: types.CodeType) -> frozenset[str]:
    """Return the names of global variables and builtins read by a code object and nested ones."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return frozenset(_named_by(code, _LOADS)).union(*map(globals_in, inner))


@functools.cache
def variables_in(code: types.CodeType) -> frozenset[str]:
    """Return the names of global variables in a code object and nested ones, and strings that may be names."""
    names = _named_by(code, _LOADS | _OF_VARIABLES)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= variables_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            names.add(constant)
    return frozenset(names)


def _named_by(code: types.CodeType, bits: Mapping[int, int]) -> set[str]:
    """Return the names in the operations of `bits`, each with its number of low bits for flags in an argument."""
    return {code.co_names[argument >> bits[operation]] for operation, argument in operations(code) if operation in bits}


@functools.cache
def attributes_set(code: types.CodeType) -> frozenset[str]:
    """Return the names of attributes set by a code object; with `setattr`, every string constant."""
    names = _named_by(code, {dis.opmap["STORE_ATTR"]: 0})
    if "setattr" in code.co_names or "__setattr__" in code.co_names:
        names.update(value for value in code.co_consts if isinstance(value, str))
    return frozenset(names)


@functools.cache
def attributes_asked(code: types.CodeType) -> frozenset[tuple[str, str]]:
    """Return pairs of a shared variable and the name of an attribute tested by `hasattr` or `getattr`."""
    if globals_in(code).isdisjoint(("getattr", "hasattr")):
        return frozenset()
    return frozenset(
        (before.argval, text.argval)
        for before, text in itertools.pairwise(dis.get_instructions(code))
        if before.opname in ("LOAD_GLOBAL", "LOAD_DEREF")
        and text.opname == "LOAD_CONST"
        and isinstance(text.argval, str)
    )


@functools.cache
def imports_in(code: types.CodeType) -> frozenset[tuple[int, str]]:
    """Return the modules bound by import statements of a code object, as pairs of the number of dots and the name."""
    lines = [*dis.get_instructions(code)] if _IMPORT in code.co_code[::2] else []
    return frozenset(
        (level.argval, line.argval if names.argval else line.argval.partition(".")[0])
        for level, names, line in zip(lines, lines[1:], lines[2:], strict=False)
        if line.opcode == _IMPORT
    )


@functools.cache
def compared_by_identity(code: types.CodeType) -> frozenset[str]:
    """Return the names in expressions that a code object compares by `is` with anything but a constant."""
    names = set[str]()
    lines = [*dis.get_instructions(code)] if _IS in code.co_code[::2] else []
    for before, comparison in itertools.pairwise(lines):
        if comparison.opname == "IS_OP" and before.opname != "LOAD_CONST":
            first, last = _extent(comparison)
            for part in lines:
                if first <= _extent(part)[0] and _extent(part)[1] <= last:
                    names.update(re.findall(r"\w+", str(part.argval)))
    return frozenset(names)


def _extent(instruction: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the start and end, in the source, of the expression computed by an instruction."""
    line, end_line, column, end_column = [number or 0 for number in instruction.positions]
    return (line, column), (end_line, end_column)


def functions_behind(value: object) -> Iterator[Any]:
    """Yield the functions run by a class attribute: the attribute itself, or the functions of a property or method."""
    if isinstance(value, types.FunctionType):
        yield value
    elif isinstance(value, (classmethod, staticmethod)):
        yield value.__func__
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, functools.cached_property):
        yield value.func
    elif value is not None:
        yield value
