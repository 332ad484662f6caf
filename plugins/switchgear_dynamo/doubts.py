"""Code that TorchDynamo silently compiles wrong, recognised by the reached names, values and classes.

All names in the code are followed: global variables, closures, attributes by name, the content of containers. Too many
doubts are better than too few: at a doubt the original function runs.
"""

from __future__ import annotations

import contextlib
import dis
import enum
import functools
import itertools
import os
import random
import sys
import sysconfig
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from switchgear_core import own
from switchgear_core.record.user_code import is_own_file

#: Names in code, by the reason why the code is not split. Seen with PyTorch 2.13; tests/split_programs.py has a program
#: for each.
_BY_REASON = {
    "tells of autograd's graph and of memory, which are others behind a compiled graph": (
        *("_version", "_base", "is_leaf", "output_nr", "grad_fn", "retains_grad", "next_functions"),
        *("_is_view", "is_set_to", "data_ptr", "untyped_storage", "storage_offset"),
    ),
    "changes what a tensor is, which TorchDynamo goes on to take for what it was": (
        *("swap_tensors", "set_", "resize_", "resize_as_", "requires_grad_", "share_memory_"),
    ),
    "asks how long objects live, and TorchDynamo keeps them": (
        *(
            "weakref",
            "WeakKeyDictionary",
            "WeakValueDictionary",
            "WeakSet",
            "finalize",
            "getrefcount",
        ),
        *("get_referrers", "get_objects", "is_tracked"),
    ),
    "looks at frames, which are others in split code": (
        *(
            "_getframe",
            "currentframe",
            "extract_stack",
            "exc_info",
            "__traceback__",
            "settrace",
            "setprofile",
        ),
    ),
    "differentiates forwards, where TorchDynamo drops the jvp of an autograd.Function": (
        *("dual_level", "make_dual", "unpack_dual", "enter_dual_level"),
    ),
    "catches errors of attributes, whose absence TorchDynamo does not check again": (
        *("AttributeError", "Exception", "BaseException"),
    ),
}
_NAMES = {name: reason for reason, names in _BY_REASON.items() for name in names}
#: Types whose subclasses may define operators of the user; TorchDynamo uses the operators of the base class.
_PLAIN = (int, float, complex, str, bytes)
_ATOMS = frozenset(
    {
        *_PLAIN,
        bool,
        type(None),
        type(Ellipsis),
        torch.Tensor,
        torch.nn.Parameter,
        torch.dtype,
        torch.device,
    }
)
#: The generator behind the functions of `random`, which TorchDynamo respects.
_SHARED = getattr(random.random, "__self__", None)
_CONTAINERS = (list, tuple, set, frozenset, deque)
#: The limit on inspected values.
_MOST = 4_000
#: In the place of a count: a class without a looked-up name.
_NEW = -1
#: Special methods that split code does not call.
_UNCALLED = frozenset(
    {
        "__init__",
        "__new__",
        "__init_subclass__",
        "__repr__",
        "__str__",
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__setstate__",
        "__dir__",
    }
)


class Doubts:
    """The values reached by the names in code, and the `reason` not to split the code, or an empty text.

    Args:
        roots: functions, code and arguments to start from.
        variables: the global variables of the code.
    """

    def __init__(self, *roots: object, variables: dict[str, object] | None = None) -> None:
        self._visited: dict[int, object] = {}
        self._classes: dict[int, Mapping[str, Any]] = {}
        self._names: dict[str, None] = {}
        #: Namespaces with attributes that code names, each with the number of names looked up so far.
        self._owners: dict[int, tuple[Mapping[str, Any], int]] = {}
        self._add_owner(variables or {})
        #: Methods of the user's classes; TorchDynamo does not notice replaced methods.
        self._methods: list[tuple[Mapping[str, Any], str, object]] = []
        self.reason = self._walk([*roots])
        self._visited, self._owners = {}, {}

    def changed(self) -> str:
        """Return why calls are no longer split, if a method was replaced since; else empty."""
        for owner, name, method in self._methods:
            if owner.get(name) is not method:
                return f"the method {name} of a class was replaced, which TorchDynamo does not notice"
        return ""

    def _add_owner(self, owner: Mapping[str, Any]) -> None:
        self._owners.setdefault(id(owner), (owner, 0))

    def _walk(self, waiting: list[object]) -> str:
        while waiting:
            value = waiting.pop()
            if type(value) not in _ATOMS and id(value) not in self._visited:
                self._visited[id(value)] = value
                if len(self._visited) > _MOST:
                    return f"it reaches more than {_MOST:,} values"
                reason = of_code(value) if isinstance(value, types.CodeType) else _of_value(value)
                if reason:
                    return reason
                waiting += self._parts(value)
            if not waiting:
                waiting += self._attributes()
        return ""

    def _parts(self, value: Any) -> Iterable[object]:
        """Return the values inside a value, regardless of names."""
        if isinstance(value, types.CodeType):
            self._names.update(dict.fromkeys((*value.co_names, *_texts(value))))
            return [item for item in value.co_consts if isinstance(item, types.CodeType)]
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return value.__func__, value.__self__
        if isinstance(value, functools.partial):
            return value.func, value.args, value.keywords
        if isinstance(value, dict) and "__builtins__" not in value:  # else global variables
            return [*dict.keys(value), *dict.values(value), *self._object(value)]
        if isinstance(value, _CONTAINERS):
            return [*_items(value), *self._object(value)]
        return self._object(value)

    def _function(self, function: types.FunctionType) -> Iterator[object]:
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                yield cell.cell_contents
        yield from function.__dict__.values()
        if is_library(function.__code__):
            return
        yield function.__code__
        self._add_owner(function.__globals__)
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()

    def _object(self, value: Any) -> Iterable[object]:
        kind = value if isinstance(value, type) else type(value)
        if isinstance(value, types.ModuleType):
            self._add_owner(value.__dict__)
            return ()
        for base in kind.__mro__:
            if id(base) not in self._classes and not _is_known(base):
                self._classes[id(base)] = base.__dict__
                self._owners[id(base)] = base.__dict__, _NEW
        if value is kind:
            return [vars(base).get("__init__") for base in kind.__mro__ if not _is_known(base)]
        if _is_known(kind) and not isinstance(value, torch.nn.Module):
            return ()
        return list(getattr(value, "__dict__", {}).values())

    def _attributes(self) -> list[object]:
        """Return the values of names that were not looked up yet; special methods are included without a name."""
        names, values = list(self._names), list[object]()
        counts = {count for _, count in self._owners.values()}
        new = {count: set(names[max(count, 0) :]) for count in counts}
        for key, (owner, count) in list(self._owners.items()):
            if count != _NEW and not new[count]:
                continue
            suspects = sorted(owner.keys() & new[count])
            if count == _NEW:
                suspects += [name for name in owner if name[:2] == "__" and name not in _UNCALLED]
                suspects += ["forward"] * ("forward" in owner)
            values += [owner[name] for name in suspects]
            if isinstance(owner, types.MappingProxyType):
                self._methods += [(owner, n, owner[n]) for n in suspects if callable(owner[n])]
            self._owners[key] = owner, len(names)
        return [_undecorated(value) for value in values]


def _items(value: Any) -> Iterable[object]:
    """Return the content of a container, bypassing the iteration of its class."""
    kind = next(kind for kind in _CONTAINERS if isinstance(value, kind))
    return kind.__iter__(value)


def _undecorated(value: Any) -> object:
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, functools.cached_property):
        return value.func
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _is_known(kind: type) -> bool:
    """Check whether a class belongs to Python or PyTorch."""
    package = kind.__module__.partition(".")[0]
    return package in sys.stdlib_module_names or package in own.PACKAGES | {"torch", "numpy"}


def _of_value(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    if issubclass(kind, _PLAIN) and kind not in _ATOMS and not _is_known(kind):
        base = next(base for base in _PLAIN if issubclass(kind, base))
        if not issubclass(kind, enum.IntEnum):
            return f"it reaches {kind.__qualname__}, {_A[base]} with operators of its own"
    if isinstance(value, random.Random) and value is not _SHARED:
        return "it draws from a random.Random, which TorchDynamo takes for as it was in the first call"
    if value is kind and issubclass(kind, weakref.ref):
        return f"it makes weak references: the code {_NAMES['weakref']}"
    factory = value.default_factory if isinstance(value, defaultdict) else None
    if isinstance(factory, types.FunctionType) or value is defaultdict:
        return "it uses a defaultdict, whose factory TorchDynamo calls while it compiles, and not again"
    if _is_compiled(value):
        name = getattr(value, "__qualname__", type(value).__name__)
        return f"it holds {name}, compiled by torch.compile, which would be taken apart"
    return ""


_A = {int: "an int", float: "a float", complex: "a complex", str: "a str", bytes: "bytes"}


def _is_compiled(value: Any) -> bool:
    """Check whether a value was made by `torch.compile` or `Module.compile`; no object of Switchgear is."""
    attributes = value.__dict__ if isinstance(value, types.FunctionType | torch.nn.Module) else {}
    return "get_compiler_config" in attributes or attributes.get("_compiled_call_impl") is not None


def of_code(code: types.CodeType) -> str:
    """Return why the names in this code prevent splitting, with the line; empty if none does, or for library code."""
    if is_library(code):
        return ""
    texts = set(_texts(code))
    for name in (*code.co_names, *texts):
        if name in _NAMES:
            return f"{name} {_NAMES[name]} ({_place(code, name)})"
    if "data" in code.co_names and any(map(_assigns_data, dis.get_instructions(code))):
        return f".data is assigned, and {_NAMES['set_']} ({_place(code, 'data')})"
    names = [line.opname for line in dis.get_instructions(code)]
    if ("PUSH_EXC_INFO", "POP_TOP") in itertools.pairwise(names):  # a bare `except:`
        return f"except: {_NAMES['AttributeError']} ({code.co_filename}:{code.co_firstlineno})"
    return ""


def _assigns_data(line: dis.Instruction) -> bool:
    return line.opname == "STORE_ATTR" and line.argval == "data"


def is_library(code: types.CodeType) -> bool:
    """Check whether code belongs to PyTorch, Switchgear, NumPy or the standard library."""
    file = code.co_filename
    if "site-packages" in file and not is_own_file(file):
        return f"site-packages{os.sep}numpy{os.sep}" in file
    return is_own_file(file) or file.startswith(_STANDARD)


_STANDARD = sysconfig.get_path("stdlib")


def _texts(code: types.CodeType) -> Iterator[str]:
    """Return identifiers among the constants of code: attributes are looked up by such texts, too."""
    return (text for text in code.co_consts if type(text) is str and text.isidentifier())


def _place(code: types.CodeType, name: str) -> str:
    instructions = dis.get_instructions(code)
    lines = [op.positions.lineno for op in instructions if op.argval == name and op.positions]
    return f"{code.co_filename}:{next(iter(lines), code.co_firstlineno)}"
