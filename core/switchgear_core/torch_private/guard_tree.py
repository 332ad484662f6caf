"""A tree of guards on Python objects, following attributes, items and elements.

PyTorch's tree is in C++, but its import needs TorchDynamo, which takes most of a second. Guards are checked in Python
until TorchDynamo is imported for another reason, and small trees also afterwards. A large Python tree then accepts no
more calls, and is rebuilt in C++. From Python 3.13 on all guards are checked in Python.
"""

from __future__ import annotations

import ctypes
import sys
import types
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from operator import getitem, itemgetter
from typing import Any, NamedTuple

from switchgear_core.source_text import attribute
from switchgear_core.torch_private.names import check_names, private, value_of

#: From Python 3.13 on the version of an instance's `__dict__` does not cover its attributes. PyTorch's tree assumes
#: that a value found there is unchanged while the version is (2.11 to 2.15).
HAS_INLINE_VALUES = sys.version_info >= (3, 13)
#: From Python 3.12 on PyTorch's version of a dict stays when `update` fills an empty dict (2.11 to 2.15).
MISSES_UPDATES = sys.version_info >= (3, 12)
RootGuardManager: Any = private("torch._C._dynamo.guards.RootGuardManager")
_install_no_tensor_aliasing_guard: Callable[..., None] = private(
    "torch._C._dynamo.guards.install_no_tensor_aliasing_guard"
)
_dict_version: Callable[[dict[Any, Any]], int] = private("torch._C._dynamo.guards.dict_version")


_MANAGERS = {
    "held": "tuple_getitem_manager",
    "tuple": "tuple_getitem_manager",
    "list": "list_getitem_manager",
    "dict": "dict_getitem_manager",
    "attribute": "getattr_manager",
    "function": "getattr_manager",
}
#: Up to this number of places, Python is as fast as entering C++.
_FEW = 12
#: The elements of longer lists are compared in C.
_MANY = 64


def dict_version(target: dict[Any, Any]) -> int | None:
    """Return the version of a dict, changed by each write; None if some writes do not change it."""
    return None if MISSES_UPDATES else _dict_version(target)


def guard_root(reads: int) -> Any:
    """Return an empty tree for a number of reads; `guard_check` returns the check of a complete tree."""
    if HAS_INLINE_VALUES:
        return _Tree(large=False)
    return RootGuardManager() if reads > _FEW and _in_dynamo() else _Tree(reads > 4 * _FEW)


def has_dict_versions(root: Any) -> bool:
    """Check whether a tree detects writes to a dict at no cost."""
    return not isinstance(root, _Tree) and not MISSES_UPDATES


def guard_child(parent: Any, access: str, key: Any, value: Any) -> Any:
    """Return the node below `parent` for `key`: a "tuple" or "list" element, a "dict" item, an "attribute", or another
    "item".

    A constant element of a tuple may be "held", and a function's attribute "function", at less cost.
    """
    if isinstance(parent, _Node):
        return parent.tree.child(parent, access, key, value)
    plain = _plain_manager()
    if access == "function" and key in ("__code__", "__defaults__"):
        manager = parent.code_manager if key == "__code__" else parent.func_defaults_manager
        return manager(f"[{key!r}]", value, plain)
    if access == "item":
        return parent.lambda_manager(itemgetter(key), f"[{key!r}]", value, plain)
    return getattr(parent, _MANAGERS[access])(key, f"[{key!r}]", value, plain)


@cache
def _plain_manager() -> Any:
    # PyTorch accepts only a member of this enumeration, in a module that imports Dynamo
    check_names(dynamo=True)
    return value_of("torch._dynamo.guards.GuardManagerType").GUARD_MANAGER


def add_all_different(
    root: Any, nodes: Sequence[Any], test: Callable[[object], bool], label: list[str]
) -> None:
    """Add a guard that the objects at several nodes differ; `test` checks it for the root object."""
    if isinstance(root, _Tree):
        root.add_lambda_guard(test, label, None)
    else:  # only the identities of tensors are compared
        _install_no_tensor_aliasing_guard([*nodes], ["" for _ in nodes], label, None)


def guard_check(root: Any) -> Callable[[object], object]:
    """Return the check of a complete tree on a value."""
    check: Callable[[object], object] = root.compiled() if isinstance(root, _Tree) else root.check
    return check


def not_written(dicts: tuple[dict[Any, Any], ...]) -> Callable[[], bool]:
    """Return a check that no dict was written to."""
    if not _in_dynamo():
        total = sum(map(_dict_version, dicts))  # a version grows with each write
        return lambda: sum(map(_dict_version, dicts)) == total
    root = RootGuardManager()
    for place, content in enumerate(dicts):
        node = guard_child(root, "tuple", place, content)
        node.add_dict_version_guard(content, ["a dict"], None)
    return partial(root.check, dicts)


def holds_still(container: Any) -> Callable[[], bool]:
    """Return a check that a list, dict, set or deque still holds the same objects, compared by identity."""
    version = dict_version(container) if type(container) is dict else None
    if version is not None:
        return lambda: _dict_version(container) == version
    if isinstance(container, list) and list.__len__(container) > _MANY:
        return _same_memory(container)
    bases: tuple[Any, ...] = (OrderedDict, dict, types.MappingProxyType, list, set, deque)
    kind = next(base for base in bases if isinstance(container, base))
    walk = getattr(kind, "items", kind.__iter__)
    parts: Any = chain.from_iterable if walk is not kind.__iter__ else iter
    ids = [*map(id, parts(walk(container)))]
    return lambda: [*map(id, parts(walk(container)))] == ids


def _same_memory(elements: list[Any]) -> Callable[[], bool]:
    """Return the check for a long list: it compares CPython's array of pointers at once."""
    count = list.__len__(elements)
    snapshot = array("Q", map(id, list.__iter__(elements)))
    place, (address, _) = id(elements) + list.__basicsize__ - 16, snapshot.buffer_info()
    compare, pointer, length = _memcmp(), ctypes.c_void_p.from_address(place), list.__len__
    if pointer.value is None or ctypes.string_at(pointer.value, 8 * count) != snapshot.tobytes():
        ids = [*map(id, elements)]  # another Python, with another memory layout
        return lambda: [*map(id, list.__iter__(elements))] == ids

    def same() -> bool:
        is_as_long = length(elements) == count and bool(snapshot)
        return is_as_long and compare(pointer.value, address, 8 * count) == 0

    return same


@cache
def _memcmp() -> Callable[..., int]:
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    return compare


def _in_dynamo() -> bool:
    return "torch._dynamo.guards" in sys.modules


#: Guards by PyTorch's names: each maps the guard's arguments to a test of a value.
_TESTS: dict[str, Callable[..., Callable[[Any], object]]] = {
    "add_equals_match_guard": lambda expected: (
        lambda value: type(value) is type(expected) and value == expected
    ),
    "add_id_match_guard": lambda expected: lambda value: id(value) == expected,
    "add_lambda_guard": lambda test: test,
    "add_type_match_guard": lambda expected: lambda value: id(type(value)) == expected,
    "add_length_check_guard": lambda expected: lambda value: len(value) == expected,
    "add_dict_length_check_guard": lambda expected: lambda value: dict.__len__(value) == expected,
    "add_dict_contains_guard": lambda expected, key: (
        lambda value: dict.__contains__(value, key) is expected
    ),
    "add_no_hasattr_guard": lambda name: lambda value: not hasattr(value, name),
    "add_dict_version_guard": lambda expected: partial(_is_version, _dict_version(expected)),
}
_ACCESS: dict[str, Callable[[Any, Any], Any]] = {
    "held": tuple.__getitem__,
    "tuple": tuple.__getitem__,
    "list": list.__getitem__,
    "dict": dict.__getitem__,
    "item": getitem,
    "attribute": getattr,
    "function": getattr,
}


def _is_version(version: int, value: dict[Any, Any]) -> bool:
    return _dict_version(value) == version


class Said(NamedTuple):
    """Result of a check: the label of the first failed guard, if a guard failed."""

    result: bool
    verbose_code_parts: list[str]


class _Node:
    """A place in a tree, with its current value; guards are added by PyTorch's names."""

    def __init__(self, tree: _Tree, number: int, value: Any) -> None:
        self.tree, self.number, self.value = tree, number, value

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("add_"):
            raise AttributeError(name)
        return partial(self.tree.add, self, name)


class _Tree(_Node):
    """The root; a `large` tree accepts values only until TorchDynamo is imported."""

    def __init__(self, large: bool) -> None:
        super().__init__(self, 0, None)
        self._large = large
        self._steps: list[tuple[str, int, Any]] = []
        #: The expression of each node in the check, the assignments before the check, and the objects named there.
        self._texts = ["v0"]
        self._lines: dict[int, str] = {}
        self._scope: dict[str, Any] = {"modules": sys.modules, "item": dict.__getitem__}
        self._tests: list[tuple[Callable[[Any], object], int, list[str]]] = []
        #: By number of a test: cheaper Python for a positive answer, and the object to compare with.
        self._cheaper: dict[int, tuple[str, object]] = {}

    def child(self, parent: _Node, access: str, key: Any, value: Any) -> _Node:
        """Return the node for `key` below another node."""
        self._steps.append((access, parent.number, key))
        number = len(self._steps)
        self._texts.append(self._text(access, parent, key, number, value))
        return _Node(self, number, value)

    def _text(self, access: str, parent: _Node, key: Any, number: int, value: Any) -> str:
        """Return Python source for the value at a key of a holder."""
        if access == "held":
            self._scope[f"held{number}"] = value
            return f"held{number}"
        holder, is_held = self._texts[parent.number], f"held{parent.number}" in self._scope
        if parent.number and not is_held and parent.number not in self._lines:
            self._lines[parent.number] = f"v{parent.number} = {holder}"
            holder = self._texts[parent.number] = f"v{parent.number}"
        if access in ("attribute", "function") and type(key) is str:
            return attribute(holder, key)
        text = repr(key)
        if type(key) not in (int, str):
            text = f"key{number}"
            self._scope[text] = key
        # a subclass of dict may override access, or create missing items
        if access == "attribute" or (
            access == "dict" and not (is_held and type(parent.value) is dict)
        ):
            get = "getattr" if access == "attribute" else "item"
            return f"{get}({holder}, {text})"
        return f"{holder}[{text}]"

    def add(self, node: _Node, name: str, *args: Any) -> None:
        """Add a guard; the last two arguments are its label, and an argument of PyTorch's."""
        number = len(self._tests)
        if name == "add_id_match_guard" and args[0] == id(node.value):
            self._cheaper[number] = "{} is {}", node.value
        elif name == "add_type_match_guard" and args[0] == id(type(node.value)):
            self._cheaper[number] = "type({}) is {}", type(node.value)
        elif name == "add_equals_match_guard":
            self._cheaper[number] = "({0} is {1} or {2}({0}))", args[0]
        self._tests.append((_TESTS[name](*args[:-2]), node.number, args[-2]))

    def compiled(self) -> Callable[[object], object]:
        """Return the guards as a generated function."""
        scope = self._scope
        conditions = []
        for index, (test, number, _) in enumerate(self._tests):
            text, operand = self._cheaper.get(index, ("{2}({0})", None))
            conditions.append(text.format(self._texts[number], f"known{index}", f"test{index}"))
            scope |= {f"test{index}": test, f"known{index}": operand}
        lines = [self._lines[number] for number in sorted(self._lines)]
        body = "\n        ".join([*lines, f"met = {' and '.join(conditions) or True}"])
        source = f"""
def check(v0):
    try:
        {body}
    except Exception:  # a place is not there, or of another kind
        return False
    return met{' and "torch._dynamo.guards" not in modules' * self._large}
"""
        exec(compile(source, "<switchgear guards>", "exec"), scope)
        check: Callable[[object], object] = scope.pop("check")
        return check

    def check_verbose(self, value: object) -> Said:
        """Return the result of a check, with a label."""
        values = [value]
        try:
            for access, parent, key in self._steps:
                values.append(_ACCESS[access](values[parent], key))
            for test, number, label in self._tests:
                if not test(values[number]):
                    return Said(False, label)
        except Exception:  # a place is missing, or has another type
            return Said(False, [])
        return Said(True, [])
