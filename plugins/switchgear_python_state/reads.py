"""Reads: the Python values read by a function during capture, and the guard on the values for later calls.

A guard follows no path from the arguments: each place is held itself, because the places on its path are guarded too.
PyTorch's guard tree checks the places in C++; after a refusal, Python finds the read that differs.
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

import torch

from switchgear_core import torch_private as internals
from switchgear_core.record.guards import Guard, Known
from switchgear_core.record.signature import Argument, Attribute, follow
from switchgear_python_state.frozen import (
    NUMBER,
    TENSOR,
    Contents,
    Instance,
    can_change,
    changing,
    frozen_key,
    is_atom,
    leaves,
    numbers_changed,
    same,
    same_keys,
)
from switchgear_python_state.holders import MISSING, NOT_SET, dict_of
from switchgear_python_state.identity import Identities, Place
from switchgear_python_state.streams import variable_of_context

#: Key for the owner itself.
ITSELF: Any = type("Itself", (), {})()
#: Key for the set of names in the dict of a class or module.
NAMES: Any = type("Names", (), {})()
#: Key for the bases of a class; code may replace the bases.
BASES = "__mro__"
#: Maximal number of changed reads named in a message.
_MOST_TOLD = 3
#: A container with more items is guarded by identity, together with its items.
_FEW_ITEMS = 8
#: After this many harmless writes to dicts, every call inspects all dicts instead of comparing versions.
_MOST_WRITES = 16


@dataclass(slots=True, eq=False)
class Read:
    """A place read during capture: the item `key` of a dict, or the attribute of another object, and its value then.

    `label` is the name shown to users; `place` is the path to the owner, if each call has its own owner. The read
    counts if `code` runs, or always if `code` is None.
    """

    owner: object
    key: Any
    value: object
    label: str
    #: Class of the owner.
    kind: type
    code: types.CodeType | None = None
    place: Place | None = None
    #: Whether code traced after the function (a backward) makes the read.
    is_later: bool = False

    @property
    def start(self) -> object:
        """Where the guard tree starts: for a class's own attribute its dict, cheaper to check."""
        owner: Any = self.owner
        if self.place is not None:
            return self.place.owner
        is_own = issubclass(self.kind, type) and self.key in vars(owner)
        return dict_of(owner) if is_own else owner

    def release(self) -> None:
        """Drop the reference to objects of the captured call."""
        if self.place is not None:
            self.owner = None

    def now(self, objects: Mapping[int, object] = MappingProxyType({})) -> Any:
        """Return the value in a call with the argument objects `objects`, or `MISSING`."""
        owner = self.owner if self.place is None else self.place.fetch(objects)
        if self.key is ITSELF:
            return owner
        if self.key is NAMES:
            return names_of(owner)
        if isinstance(owner, dict):
            return dict.get(owner, self.key, MISSING)
        if isinstance(owner, type):
            return class_attribute(owner, self.key)
        if isinstance(owner, ContextVar):
            return variable_of_context(owner)
        try:
            return getattr(owner, self.key)
        except (AttributeError, ValueError):
            return MISSING

    def holds(self, objects: Mapping[int, object] = MappingProxyType({})) -> bool:
        """Check whether the value equals the recorded value."""
        now = self.now(objects)
        return bool(now == self.value) if self.key is NAMES else same(now, self.value)

    def as_key(self) -> tuple[object, ...]:
        """Return a key, equal for reads with the same demands on every call."""
        place = () if self.place is None else (self.place.owner, *self.place.steps)
        # other steps may be of any class
        where = [key if isinstance(key, (str, Argument, Attribute)) else id(key) for key in place]
        parts = (self.owner, self.key, self.kind)
        return *map(id, parts), *where, self.is_later, frozen_key(self.value)

    def __str__(self) -> str:
        return f"{self.label} is {_shown(self.value)}"


def _shown(value: object) -> str:
    try:
        text = value.__qualname__ if isinstance(value, (type, types.FunctionType)) else repr(value)
    except Exception:  # from a user's `__repr__`
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def names_of(space: Any) -> frozenset[str]:
    """Return the names in the dict of a class or module, without the names added by Python itself."""
    return frozenset(space) - NOT_SET


def class_attribute(kind: type, name: str) -> Any:
    """Return an attribute of a class or of its bases, unbound, else `MISSING`."""
    if name == BASES:
        return kind.__mro__
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return MISSING


def guard_on(state: State, arguments: Iterable[int], settle: Callable[[], None]) -> Guard:
    """Return the guard on a state; `arguments` are the places of argument objects among its reads."""
    state = _STATES.setdefault(state.key, state)
    names = "".join(f"a{index}, " for index in arguments)
    check = "state.holds(state.fixed) or state.refresh()"
    if names:
        check = f"state.holds((state.owners, {names})) or state.refresh({names})"
    details = state.conditions, state.varying, state.modules()
    return Guard(check, state.why, {"state": state}, settle, *details)


class State:
    """The reads of one capture, checked by a guard tree over `owners` and the argument objects of a call.

    `fixed` are the owners alone.
    """

    def __init__(
        self,
        reads: list[Read],
        arguments: Mapping[int, object],
        written_ids: Set[int],
        identities: Identities,
    ) -> None:
        self._reads = reads
        self._identities = identities
        self.indices = tuple(arguments)
        #: Ids of dicts with changes between calls: every call inspects their items.
        self._looked_into = {*written_ids}
        self._writes_met = 0
        self.owners: tuple[object, ...] = ()
        self.fixed: tuple[tuple[object, ...]] = (self.owners,)
        #: The guard tree, and its check of a call, given as the owners and the argument objects. The captured call
        #: needs neither, and may be the only call.
        self._root: Any = None
        self.holds: Callable[[object], object] = _is_not_known
        self._is_new = True
        for read in reads:
            read.release()
        #: Equal for states with the same demands on every call.
        self.key: tuple[object, ...] = (self.indices, *[read.as_key() for read in reads])
        if identities.ties or identities.distinct_places:
            self.key = (object(),)

    def modules(self) -> list[Known]:
        """Return the modules among the recorded values."""
        values = [read.value for read in self._reads]
        nested = chain.from_iterable(leaves(value) for value in values if type(value) is Contents)
        return [value for value in (*values, *nested) if type(value) is Known]

    def _build(self, objects: Mapping[int, object]) -> None:
        """Build the guard tree from the current values, equal to the recorded values."""
        fixed = [read for read in self._reads if read.place is None or not read.place.is_of_call]
        self.owners = tuple({id(owner): owner for owner in [read.start for read in fixed]}.values())
        looked_into = None if self._writes_met > _MOST_WRITES else self._looked_into
        self.fixed = (self.owners,)
        call = (self.owners, *objects.values())
        self._root, self._refs = _tree(self._reads, call, [*objects], looked_into, self._identities)
        self.holds = internals.guard_check(self._root)

    def refresh(self, *objects: Any) -> bool:
        """Check all reads separately after the tree has refused a call.

        The tree compares some places by identity, and dicts by version; if nothing else differs, the tree is rebuilt.
        """
        arguments = dict(zip(self.indices, objects, strict=True))
        labels: list[str] = []
        if self._root is not None:
            labels = self._root.check_verbose((self.owners, *objects)).verbose_code_parts
        suspects = [self._reads[int(number)] for number in labels[:1] if number.isdecimal()]
        if not all(read.holds(arguments) for read in (*suspects, *self._reads)):
            return False
        if self._identities.missed(arguments):
            return False
        self._looked_into.update(id(read.owner) for read in suspects)
        self._writes_met += self._root is not None
        if not self._is_new:
            self._build(arguments)
        self._is_new = False
        return True

    def objects(self, leaves: Sequence[Any]) -> dict[int, Any]:
        """Return the argument objects with reads, by place."""
        return {index: leaves[index] for index in self.indices}

    def why(self, leaves: Sequence[Any]) -> str:
        """Return a description of the changed reads in a call with the flattened arguments `leaves`."""
        objects = self.objects(leaves)
        missed = [read for read in self._reads if not read.holds(objects)]
        changes = [
            f"{read.label} (from {_shown(read.value)} to {_shown(read.now(objects))})" for read in missed[:_MOST_TOLD]
        ]
        return ", ".join(changes) or self._identities.missed(objects) or "Python state"

    def varying(self, leaves: Sequence[Any]) -> Iterator[str]:
        """Yield the paths of changed integers in a call with the flattened arguments `leaves`."""
        objects = self.objects(leaves)
        for read in self._reads:
            yield from numbers_changed(read.now(objects), read.value, read.label)

    def conditions(self) -> list[str]:
        """Return a line for each read."""
        return sorted(map(str, self._reads))


#: States in use, by key: entries with equal states share a state and its tree, checked once.
_STATES: WeakValueDictionary[tuple[object, ...], State] = WeakValueDictionary()


def _is_not_known(call: object) -> bool:
    return False


class _Nodes:
    """The nodes of a guard tree over the owners and the argument objects of a call."""

    def __init__(self, call: tuple[Any, ...], indices: list[int], size: int) -> None:
        self.root = internals.guard_root(size)
        self._call = call
        self._places = {id(owner): place for place, owner in enumerate(call[0])}
        self.indices = indices
        self._nodes: dict[Any, Any] = {(): self.root}

    def of(self, read: Read) -> Any:
        """Return the start node of a read."""
        if read.place is None:
            return self._at((0, self._places[id(read.start)]))
        return self.at(read.place)

    def at(self, place: Place) -> Any:
        """Return the node of the object at a place."""
        if not place.is_of_call:
            return self._at((0, self._places[id(place.owner)], *place.steps))
        return self._at((1 + self.indices.index(place.owner.index), *place.steps))

    def _at(self, steps: tuple[object, ...]) -> Any:
        if steps not in self._nodes:
            parent, step = self._at(steps[:-1]), steps[-1]
            value = follow(self._call, steps)
            holder = follow(self._call, steps[:-1])
            if isinstance(step, Attribute):
                node = internals.guard_child(parent, "attribute", step.name, value)
            else:
                kinds = (kind.__name__ for kind in (tuple, list, dict) if isinstance(holder, kind))
                access = "held" if holder is self._call[0] else next(kinds, "item")
                node = internals.guard_child(parent, access, step, value)
            self._nodes[steps] = node
        return self._nodes[steps]


def _tree(
    reads: list[Read],
    call: tuple[Any, ...],
    indices: list[int],
    looked_into: Set[int] | None,
    identities: Identities,
) -> tuple[Any, list[object]]:
    """Return the guard tree, with read numbers as labels, and the objects compared by identity.

    A dict outside `looked_into` is checked by its version tag alone; `looked_into=None` inspects every dict.
    """
    nodes = _Nodes(call, indices, len(reads))
    if not internals.has_dict_versions(nodes.root):
        looked_into = None
    objects = dict(zip(indices, call[1:], strict=True))
    references: list[object] = []
    by_version: set[int] = set()
    for number, read in enumerate(reads):
        node, label, owner = nodes.of(read), [str(number)], read.start
        is_still = looked_into is not None and id(read.owner) not in looked_into
        if is_still and _has_version(read):
            if id(owner) not in by_version:
                by_version.add(id(owner))
                node.add_dict_version_guard(owner, label, None)
        elif read.key is NAMES:
            node.add_lambda_guard(_names_stay(owner), label, None)
        else:
            _add_read(node, read, objects, label, references, is_still)

    def hold(call: Any) -> bool:
        return not identities.missed(dict(zip(indices, call[1:], strict=True)))

    identities.add_to(nodes.root, [nodes.at(place) for place in identities.distinct_places], hold)
    return nodes.root, references


def _names_stay(space: Any) -> Callable[[Any], bool]:
    """Return a check for names added to a dict: an added name changes the length and comes last."""
    count, last = len(space), next(reversed(space), None)
    return lambda now: len(now) == count and next(reversed(now), None) is last


def _has_version(read: Read) -> bool:
    """Check whether the version of the dict alone decides that a value is unchanged."""
    if read.place is not None or type(read.start) is not dict:
        return False
    return read.key is not ITSELF and not can_change(read.value)


def _is_by_identity(frozen: object, is_still: bool) -> bool:
    """Check whether a container is guarded by identity before content: a tuple, a large container, a versioned dict."""
    if not isinstance(frozen, Contents) or frozen.kind is types.MethodType:
        return False
    if is_still and frozen.keys and _is_versioned(frozen.kind):
        return True
    is_flat = not any(isinstance(item, (Contents, Instance, Known)) for item in frozen.items)
    if frozen.kind is tuple and is_flat:
        return True
    return frozen.size > _FEW_ITEMS


def _is_versioned(kind: type) -> bool:
    return issubclass(kind, dict) and not issubclass(kind, OrderedDict)  # `move_to_end` bypasses the version


def _add_identity(node: Any, frozen: object, value: Any, label: list[str], is_still: bool) -> None:
    """Add guards on the identity of a container and of its items, at all depths."""
    node.add_id_match_guard(id(value), label, None)
    has_version = is_still and _is_versioned(type(value))
    if has_version:
        node.add_dict_version_guard(value, label, None)
    for item in [*changing(value, frozen)][has_version:]:
        check = internals.holds_still(item)
        node.add_lambda_guard(lambda _, check=check: check(), label, None)


def _add_read(
    node: Any,
    read: Read,
    objects: Mapping[int, object],
    label: list[str],
    references: list[object],
    is_still: bool,
) -> None:
    if read.key is ITSELF:
        _add_value(node, read.value, read.now(objects), label)
        return
    is_dict = _access(read) == "dict"
    if read.kind is ContextVar:
        node.add_lambda_guard(lambda _: read.holds(), label, None)
    elif read.value is MISSING and is_dict:
        node.add_dict_contains_guard(False, read.key, label, None)
    elif read.value is MISSING and read.kind is not types.CellType:
        node.add_no_hasattr_guard(read.key, label, None)
    elif read.kind is dict or _is_plain(read):
        now = read.now(objects)
        child = internals.guard_child(node, _access(read), read.key, now)
        if read.place is None and _is_by_identity(read.value, is_still):
            references.append(now)
            _add_identity(child, read.value, now, label, is_still)
        else:
            _add_value(child, read.value, now, label)
    else:
        node.add_lambda_guard(lambda _: read.holds(), label, None)


def _access(read: Read) -> str:
    if issubclass(read.kind, dict) or isinstance(read.start, dict):
        return "dict"
    return "function" if read.kind is types.FunctionType else "attribute"


def _is_plain(read: Read) -> bool:
    """Check whether `getattr` returns the stored value without running code."""
    if issubclass(read.kind, type):
        return type(read.value) in (types.FunctionType, property, Contents) or is_atom(read.value)
    if read.kind is types.CellType:
        return read.value is not MISSING
    return not issubclass(read.kind, dict)


def _add_value(node: Any, frozen: object, value: Any, label: list[str]) -> None:
    """Add guards that a value equals the frozen value."""
    if isinstance(frozen, Contents) and frozen.size > 4 * _FEW_ITEMS:
        node.add_lambda_guard(lambda now: same(now, frozen), label, None)
    elif isinstance(frozen, Contents) and frozen.kind in (list, tuple):
        node.add_type_match_guard(id(frozen.kind), label, None)
        node.add_length_check_guard(len(frozen.items), label, None)
        for place, item in enumerate(frozen.items):
            child = internals.guard_child(node, frozen.kind.__name__, place, value[place])
            _add_value(child, item, value[place], label)
    elif isinstance(frozen, Contents) and frozen.kind is dict:
        node.add_type_match_guard(id(frozen.kind), label, None)
        keys = frozen.keys or ()
        node.add_dict_length_check_guard(len(keys), label, None)
        if keys:
            node.add_lambda_guard(lambda now: same_keys(now, keys), label, None)
        for key, item in zip(keys, frozen.items, strict=True):
            now = dict.__getitem__(value, key)
            _add_value(internals.guard_child(node, "dict", key, now), item, now, label)
    elif isinstance(frozen, Instance):
        node.add_type_match_guard(id(frozen.kind), label, None)
    elif frozen is NUMBER:
        node.add_type_match_guard(id(int), label, None)  # an input has further guards
    elif isinstance(frozen, Known):
        node.add_lambda_guard(frozen.names, label, None)
    elif isinstance(frozen, Contents) or frozen is TENSOR or _needs_care(frozen):
        node.add_lambda_guard(lambda now: same(now, frozen), label, None)
    elif not is_atom(frozen):
        node.add_id_match_guard(id(frozen), label, None)
    else:
        node.add_equals_match_guard(frozen, label, None)


def _needs_care(value: Any) -> bool:
    """Check whether `==` is too weak or too strong for a value: signed zeros, NaN, slices, ranges and sizes."""
    if not is_atom(value):
        return False
    is_odd = isinstance(value, (float, complex)) and (value == 0 or value != value)
    return is_odd or isinstance(value, (slice, range, torch.Size))
