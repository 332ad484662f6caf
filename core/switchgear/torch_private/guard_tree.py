"""A tree of guards on Python objects, that follows attributes, items and elements.

PyTorch's is in C++, and cannot be made without TorchDynamo, which takes most of a second to import: until something
else has imported that, the guards are asked in Python.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from switchgear.torch_private.names import check_names, private, value_of

#: From Python 3.13 on the version of an instance's `__dict__` does not tell of its attributes.
HAS_INLINE_VALUES = sys.version_info >= (3, 13)
RootGuardManager: Any = private("torch._C._dynamo.guards.RootGuardManager")
_dict_version: Callable[[dict[Any, Any]], int] = private("torch._C._dynamo.guards.dict_version")


def guard_root() -> Any:
    """An empty tree; `check(value)` says whether a value meets it."""
    return RootGuardManager() if _in_dynamo() else _Tree()


def guard_child(parent: Any, access: str, key: Any, value: Any) -> Any:
    """The node below `parent` of what lies at `key`: a "tuple" or "list" element, a "dict" item, an "attribute"."""
    if isinstance(parent, _Node):
        return parent.tree.child(parent, access, key)
    # PyTorch refuses any other object than a member of this enumeration, which lies in what imports Dynamo
    check_names(dynamo=True)
    plain = value_of("torch._dynamo.guards.GuardManagerType").GUARD_MANAGER
    method = {
        "tuple": parent.tuple_getitem_manager,
        "list": parent.list_getitem_manager,
        "dict": parent.dict_getitem_manager,
        "attribute": parent.getattr_manager,
    }[access]
    return method(key, f"[{key!r}]", value, plain)


def not_written(dicts: tuple[dict[Any, Any], ...]) -> Callable[[], bool]:
    """A check that nobody has written to any of these."""
    if not _in_dynamo():
        total = sum(map(_dict_version, dicts))  # a version grows with each write
        return lambda: sum(map(_dict_version, dicts)) == total
    root = guard_root()
    for place, held in enumerate(dicts):
        node = guard_child(root, "tuple", place, held)
        node.add_dict_version_guard(held, ["a dict"], None)
    return partial(root.check, dicts)


def _in_dynamo() -> bool:
    return "torch._dynamo.guards" in sys.modules


#: Guards by PyTorch's names: from what they are added with to what is asked of a value.
_TESTS: dict[str, Callable[..., Callable[[Any], object]]] = {
    "add_equals_match_guard": lambda known: (
        lambda value: type(value) is type(known) and value == known
    ),
    "add_id_match_guard": lambda known: lambda value: id(value) == known,
    "add_lambda_guard": lambda test: test,
    "add_type_match_guard": lambda known: lambda value: id(type(value)) == known,
    "add_length_check_guard": lambda known: lambda value: len(value) == known,
    "add_mapping_keys_guard": lambda known: lambda value: [*dict.keys(value)] == [*known],
    "add_dict_contains_guard": lambda known, key: (
        lambda value: dict.__contains__(value, key) is known
    ),
    "add_no_hasattr_guard": lambda name: lambda value: not hasattr(value, name),
    "add_dict_version_guard": lambda known: partial(_is_version, _dict_version(known)),
}
_ACCESS: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": tuple.__getitem__,
    "list": list.__getitem__,
    "dict": dict.__getitem__,
    "attribute": getattr,
}


def _is_version(known: int, value: dict[Any, Any]) -> bool:
    return _dict_version(value) == known


class Said(NamedTuple):
    """What a check found: the label of the first guard that is not met, if it is one's."""

    result: bool
    verbose_code_parts: list[str]


class _Node:
    """A place in a tree; guards are added by PyTorch's names."""

    def __init__(self, tree: _Tree, number: int) -> None:
        self.tree, self.number = tree, number

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("add_"):
            raise AttributeError(name)
        return partial(self.tree.add, self.number, name)


class _Tree(_Node):
    """The root."""

    def __init__(self) -> None:
        super().__init__(self, 0)
        self._children: list[tuple[int, str, Any]] = []
        self._guards: list[tuple[int, str, tuple[Any, ...]]] = []
        self._steps: list[tuple[Callable[[Any, Any], Any], int, Any]] = []
        self._tests: list[tuple[Callable[[Any], object], int]] = []
        #: Whether all guards are met.
        self.check: Callable[[object], bool] = self._first

    def child(self, parent: _Node, access: str, key: Any) -> _Node:
        """The node of what lies at `key` below another."""
        self._children.append((parent.number, access, key))
        self._steps.append((_ACCESS[access], parent.number, key))
        return _Node(self, len(self._children))

    def add(self, number: int, name: str, *args: Any) -> None:
        """A guard; the last two arguments are its label, and what PyTorch wants there."""
        self._guards.append((number, name, args))
        self._tests.append((_TESTS[name](*args[:-2]), number))

    def _first(self, value: object) -> bool:
        self.check = self._compiled()
        return self.check(value)

    def _compiled(self) -> Callable[[object], bool]:
        """The guards as one generated function, which leaves its place to the tree in C++ once there is one."""
        scope: dict[str, Any] = {"modules": sys.modules, "go_on": self._in_cpp}
        lines = []
        for number, (parent, access, key) in enumerate(self._children, 1):
            scope |= {f"get{number}": _ACCESS[access], f"key{number}": key}
            lines.append(f"v{number} = get{number}(v{parent}, key{number})")
        asked = [f"test{index}(v{number})" for index, (_, number) in enumerate(self._tests)]
        scope |= {f"test{index}": test for index, (test, _) in enumerate(self._tests)}
        for index, (number, name, args) in enumerate(self._guards):
            if name == "add_id_match_guard":
                asked[index] = f"id(v{number}) == {args[0]}"
        body = "\n        ".join([*lines, f"met = {' and '.join(asked) or True}"])
        source = f"""
def check(v0):
    try:
        {body}
    except Exception:  # a place is not there, or of another kind
        return False
    if met and "torch._dynamo.guards" in modules:
        go_on()
    return bool(met)
"""
        exec(compile(source, "<switchgear guards>", "exec"), scope)
        check: Callable[[object], bool] = scope["check"]
        return check

    def check_verbose(self, value: object) -> Said:
        """What a check finds."""
        values = [value]
        try:
            for get, parent, key in self._steps:
                values.append(get(values[parent], key))
            for index, (test, number) in enumerate(self._tests):
                if not test(values[number]):
                    return Said(False, self._guards[index][2][-2])
        except Exception:  # a place is not there, or of another kind
            return Said(False, [])
        return Said(True, [])

    def _in_cpp(self) -> None:
        """The same tree as PyTorch's; what it takes note of, as versions of dicts, has just been checked."""
        nodes = [RootGuardManager()]
        for parent, access, key in self._children:
            nodes.append(guard_child(nodes[parent], access, key, None))
        for number, name, args in self._guards:
            getattr(nodes[number], name)(*args)
        self.check = nodes[0].check
