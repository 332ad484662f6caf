"""Reads: what a function took from Python while it was captured, and the guard that another call finds it so.

A guard follows no path from the arguments: each place is held itself, for the places that led to it are guarded too.
PyTorch's guard tree checks them in C++; where that says no, Python tells which it was.
"""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch

from switchgear import torch_private as internals
from switchgear.capture.guards import Guard
from switchgear.features.python_state.frozen import TENSOR, Contents, Data, is_atom, same
from switchgear.features.python_state.holders import MISSING


@dataclass(slots=True, eq=False)
class Read:
    """A place that was read: the item `key` of a dict, or the attribute of another object, and what was there.

    `label` is what a user calls it. `code` reads it if it runs: a code object, or any that names it; if None, it was
    read.
    """

    owner: object
    key: Any
    value: object
    label: str
    code: types.CodeType | str | None = None

    def now(self) -> Any:
        """What is there now, `MISSING` if nothing is."""
        if isinstance(self.owner, dict):
            return dict.get(self.owner, self.key, MISSING)
        if isinstance(self.owner, type):
            return class_attribute(self.owner, self.key)
        try:
            return getattr(self.owner, self.key)
        except (AttributeError, ValueError):
            return MISSING

    def holds(self) -> bool:
        """Whether it is as it was."""
        return same(self.now(), self.value)

    def was_made(self, ran: Set[types.CodeType], names: Set[str]) -> bool:
        """Whether it was read, if these code objects ran, which use these names."""
        if isinstance(self.code, str):
            return self.code in names
        return self.code is None or self.code in ran

    def __str__(self) -> str:
        return f"{self.label} is {_shown(self.value)}"


def _shown(value: object) -> str:
    text = getattr(value, "__qualname__", None) or repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def class_attribute(kind: type, name: str) -> Any:
    """An attribute of a class as it lies in it or a base, unbound."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return MISSING


def reads_made(
    reads: Mapping[tuple[int, Any], Read],
    links: Mapping[Any, Set[int]],
    ran: Set[types.CodeType] | None,
) -> list[Read]:
    """Of what code may read, what the code that ran has read: of classes, those that it has come by.

    `links` has what each read, by its key, and each object led to; under None are the roots.
    """
    if ran is None:
        return [*reads.values()]
    names = {name for code in ran for name in code.co_names}
    made = {key: read for key, read in reads.items() if read.was_made(ran, names)}
    of_classes: dict[int, list[tuple[int, Any]]] = {}
    for key, read in made.items():
        if isinstance(read.owner, type):
            of_classes.setdefault(id(read.owner), []).append(key)
    pending: list[Any] = [
        None,
        *(key for key, read in made.items() if not isinstance(read.owner, type)),
    ]
    live: set[Any] = set()
    while pending:
        place = pending.pop()
        if place not in live:
            live.add(place)
            pending += [*links.get(place, ()), *of_classes.get(place, ())]
    exact = {key for key, read in made.items() if read.code is None}
    return [read for key, read in made.items() if key in live or key in exact]


def guard_on(reads: Iterable[Read]) -> Guard:
    """The guard that all these places hold what they did."""
    state = State([*reads])
    condition = "state.root.check(state.owners)"
    return Guard(condition, state.why, {"state": state}, forget=state.forget)


class State:
    """What was read, as `root` looks at it in `owners`."""

    def __init__(self, reads: list[Read]) -> None:
        self._reads = reads
        self._build()

    def _build(self) -> None:
        self.owners = tuple({id(read.owner): read.owner for read in self._reads}.values())
        self.root = _tree(self._reads, self.owners)

    def why(self) -> str:
        """Which place holds something else now."""
        missed = next((read for read in self._reads if not read.holds()), None)
        if missed is None:
            return "Python state"
        return f"{missed.label} changed from {_shown(missed.value)} to {_shown(missed.now())}"

    def forget(self) -> bool:
        """Leave out what does not hold now; False if all does."""
        left = [read for read in self._reads if read.holds()]
        if len(left) == len(self._reads):
            return False
        self._reads = left
        self._build()
        return True

    def __str__(self) -> str:
        return "\n".join(map(str, self._reads))


def _tree(reads: list[Read], owners: tuple[object, ...]) -> Any:
    root = internals.guard_root()
    nodes: dict[int, Any] = {}
    places = {id(owner): place for place, owner in enumerate(owners)}
    for read in reads:
        owner = read.owner
        node = nodes.get(id(owner))
        if node is None:
            node = internals.guard_child(root, "tuple", places[id(owner)], owner)
            nodes[id(owner)] = node
        _add_read(node, read)
    return root


def _add_read(node: Any, read: Read) -> None:
    label = [read.label]
    is_dict = isinstance(read.owner, dict)
    if read.value is MISSING and is_dict:
        node.add_dict_contains_guard(False, read.key, label, None)
    elif read.value is MISSING and not isinstance(read.owner, types.CellType):
        node.add_no_hasattr_guard(read.key, label, None)
    elif is_dict and type(read.owner) is dict:
        _add_value(
            internals.guard_child(node, "dict", read.key, read.now()), read.value, read.now(), label
        )
    elif _is_plain(read):
        _add_value(
            internals.guard_child(node, "attribute", read.key, read.now()),
            read.value,
            read.now(),
            label,
        )
    else:
        node.add_lambda_guard(lambda _: read.holds(), label, None)


def _is_plain(read: Read) -> bool:
    """Whether `getattr` gives what lies there, without running code."""
    if isinstance(read.owner, type):
        return isinstance(read.value, (types.FunctionType, property)) or is_atom(read.value)
    return not isinstance(read.owner, (dict, types.CellType)) or (
        isinstance(read.owner, types.CellType) and read.value is not MISSING
    )


def _add_value(node: Any, frozen: object, value: Any, label: list[str]) -> None:
    """Have a node of the tree say that a value is what was frozen."""
    if isinstance(frozen, Contents) and frozen.kind in (list, tuple):
        node.add_type_match_guard(id(frozen.kind), label, None)
        node.add_length_check_guard(len(frozen.items), label, None)
        for place, item in enumerate(frozen.items):
            child = internals.guard_child(node, frozen.kind.__name__, place, value[place])
            _add_value(child, item, value[place], label)
    elif isinstance(frozen, Contents) and frozen.kind is dict:
        node.add_type_match_guard(id(dict), label, None)
        node.add_dict_length_check_guard(len(frozen.items), label, None)
        for key, item in zip(frozen.keys or (), frozen.items, strict=True):
            _add_value(
                internals.guard_child(node, "dict", key, value[key]), item, value[key], label
            )
    elif isinstance(frozen, (Contents, Data)) or frozen is TENSOR or _needs_care(frozen):
        node.add_lambda_guard(lambda value: same(value, frozen), label, None)
    elif is_atom(frozen) and not isinstance(frozen, enum.Enum):
        node.add_equals_match_guard(frozen, label, None)
    else:
        node.add_id_match_guard(id(frozen), label, None)


def _needs_care(value: object) -> bool:
    """Whether `==` takes it for something else: 0.0 for -0.0, nan for no nan, a slice of them."""
    if isinstance(value, (float, complex)):
        return value == 0 or value != value
    return isinstance(value, (slice, torch.Size, deque))
