"""Holders: mutable places in Python, read or written by a function, each with its initial content."""

from __future__ import annotations

import copy
import gc
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, TypeAlias

import torch

from switchgear_core import torch_private as internals

#: The content of a holder, by key.
Content: TypeAlias = dict[Any, Any]
#: The value of an empty place.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()


class Holder:
    """A mutable place. `before` is its initial content by key; `label` describes the place.

    `hides_absence`: code may have asked for absent keys without a record.
    """

    hides_absence = False

    def __init__(self, target: Any, label: str) -> None:
        self.target = target
        self.label = label
        self.before = self.content()
        #: Initial content beyond `before`: code may name its keys later.
        self.all: Content = {}
        #: Symbolic numbers in place of numbers while the function runs, by key.
        self.symbolic: Content = {}

    def bare(self) -> Holder:
        """Return a copy with kind and label alone."""
        twin = copy.copy(self)
        twin.target, twin.before, twin.all, twin.symbolic = None, {}, {}, {}
        return twin

    def content(self) -> Content:
        """Return the current content, by key."""
        raise NotImplementedError

    def put(self, content: Content) -> None:
        """Replace the content."""
        raise NotImplementedError

    def changed(self) -> bool:
        """Check whether the holder has other objects than initially, or another order."""
        return _differ(self.content(), self.at_first)

    @property
    def at_first(self) -> Content:
        """The initial content, with symbolic numbers."""
        return self.before | self.symbolic if self.symbolic else self.before

    def make_symbolic(self, key: Any, number: torch.SymInt) -> None:
        """Replace a number by a symbolic number while the function runs."""
        self.symbolic[key] = number
        self.put(self.content() | {key: number})

    def put_back(self) -> None:
        """Restore the initial content."""
        self.put(self.before)
        self.symbolic = {}


class _InDict(Holder):
    """A place in a dict, unchanged if nobody has written to the dict."""

    def __init__(self, target: Any, label: str) -> None:
        super().__init__(target, label)
        self._version = internals.dict_version(self._dict)
        if isinstance(target, OrderedDict):  # `move_to_end` bypasses the version
            self._version = None

    @property
    def _dict(self) -> dict[Any, Any]:
        return self.target  # type: ignore[no-any-return]

    def is_untouched(self) -> bool:
        """Check by its version whether the dict was not written to."""
        version = self._version
        return version is not None and internals.dict_version(self._dict) == version


class Items(_InDict):
    """A dict, such as the `__dict__` of an instance."""

    def content(self) -> Content:
        """Return the items."""
        target = self.target
        return target.copy() if type(target) is dict else dict(dict_base(target).items(target))

    def changed(self) -> bool:
        """Check whether other objects are held; most dicts have not been written to."""
        if self.is_untouched():
            return False
        now = self.target if type(self.target) is dict else self.content()
        return _differ(now, self.at_first if self.symbolic else self.before)

    def put(self, content: Content) -> None:
        """Store only differences, so that other threads see no other change."""
        target, base = self.target, dict_base(self.target)
        for key in [key for key in base.keys(target) if key not in content]:
            base.__delitem__(target, key)
        if [*base.keys(target)] != [*content][: len(base.keys(target))]:  # the others come last
            base.clear(target)
        for key, value in content.items():
            if base.get(target, key, MISSING) is not value:
                base.__setitem__(target, key, value)


class Attributes(Items):
    """The `__dict__` of a function or tensor."""

    hides_absence = True


def _differ(now: Mapping[Any, Any], before: Content) -> bool:
    """Check whether the objects or their order differ."""
    if len(now) != len(before) or any(map(operator.is_not, now.values(), before.values())):
        return True
    return [*now] != [*before]


def items_of(value: Any) -> list[Any]:
    """Return the items of a container, bypassing iteration methods of its class."""
    if isinstance(value, dict):
        return [*dict_base(value).values(value)]
    if isinstance(value, types.MappingProxyType):
        return [*value.values()]
    bases: tuple[Any, ...] = (tuple, list, set, frozenset, deque)
    base = next(base for base in bases if isinstance(value, base))
    return [*base.__iter__(value)]


def dict_base(target: Content) -> type[dict[Any, Any]]:
    """Return the built-in class whose methods change a dict, bypassing methods of a subclass."""
    return OrderedDict if isinstance(target, OrderedDict) else dict


class Variables(_InDict):
    """The global variables of a module that code names; others are ignored."""

    hides_absence = True

    def __init__(self, target: dict[str, Any], label: str) -> None:
        self.names: set[str] = set()
        super().__init__(target, label)
        self.all = target.copy()

    def watch(self, names: Set[str]) -> list[str]:
        """Watch more variables; return the names of new variables with a value."""
        new_names = names - self.names
        self.names |= new_names
        new = sorted(new_names & self.all.keys())
        self.before.update([(name, self.all[name]) for name in new])
        return new

    def content(self) -> Content:
        """Return the watched variables with a value."""
        return {name: self.target[name] for name in sorted(self.names & self.target.keys())}

    def changed(self) -> bool:
        """Check whether a watched variable has changed."""
        if self.is_untouched():
            return False
        now, before = self.names & self.target.keys(), self.at_first
        return now != before.keys() or any(self.target[key] is not value for key, value in before.items())

    def put(self, content: Content) -> None:
        """Set or delete the watched variables."""
        for name in self.names:
            if name in content:
                self.target[name] = content[name]
            else:
                self.target.pop(name, None)


class Elements(Holder):
    """A list or deque."""

    def content(self) -> Content:
        """Return the elements by position."""
        return dict(enumerate(items_of(self.target)))

    def put(self, content: Content) -> None:
        """Replace all elements."""
        if isinstance(self.target, list):
            self.target[:] = content.values()
            return
        self.target.clear()
        self.target.extend(content.values())


class Members(Holder):
    """A set."""

    def content(self) -> Content:
        """Return the members, each under itself."""
        return {member: member for member in self.target}

    def changed(self) -> bool:
        """Check whether the members differ."""
        return self.content().keys() != self.before.keys()

    def put(self, content: Content) -> None:
        """Replace all members."""
        self.target.clear()
        self.target.update(content)


class Variable(Holder):
    """A variable shared by functions: a cell."""

    def content(self) -> Content:
        """Return the content of the cell; empty for an unbound cell."""
        try:
            return {"cell_contents": self.target.cell_contents}
        except ValueError:
            return {}

    def put(self, content: Content) -> None:
        """Bind or unbind the cell."""
        if content:
            self.target.cell_contents = content["cell_contents"]
        else:
            del self.target.cell_contents


class Slots(Holder):
    """The attributes in the slots of an object."""

    def content(self) -> Content:
        """Return the slots with a value."""
        values = {name: _slot(self.target, name) for name in slots_of(type(self.target))}
        return {name: value for name, value in values.items() if value is not MISSING}

    def put(self, content: Content) -> None:
        """Set or delete the slots."""
        _assign(self, content, object.__setattr__, object.__delattr__)


def _assign(holder: Holder, content: Content, setter: Callable[..., None], deleter: Callable[..., None]) -> None:
    """Set or delete attributes so as to match `content`."""
    now = holder.content()
    for name in now.keys() - content.keys():
        deleter(holder.target, name)
    for name, value in content.items():
        if now.get(name, MISSING) is not value:
            setter(holder.target, name, value)


def dict_of(kind: type) -> dict[str, Any]:
    """Return the attribute dict of a class."""
    attrs: dict[str, Any] = gc.get_referents(vars(kind))[0]
    return attrs


class ClassAttributes(_InDict):
    """The attributes of a class itself."""

    hides_absence = True

    def __init__(self, target: type, label: str) -> None:
        super().__init__(target, label)
        self.all = {**vars(target)}

    @property
    def _dict(self) -> dict[Any, Any]:
        return dict_of(self.target)

    def changed(self) -> bool:
        """Check whether an attribute has changed; most classes have no change at all."""
        if self.is_untouched():
            return False
        return _differ(vars(self.target), self.all) and super().changed()

    def content(self) -> Content:
        """Return the attributes set by code; capture itself replaces `__getattribute__`."""
        attributes = vars(self.target).items()
        return {name: value for name, value in attributes if name not in NOT_SET}

    def put(self, content: Content) -> None:
        """Set or delete the attributes."""
        _assign(self, content, setattr, delattr)


NOT_SET = frozenset(
    {
        "__getattribute__",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__doc__",
        "__annotations_cache__",
    }
)


def slots_of(kind: type) -> Iterator[str]:
    """Yield the names of the slots of a class and its bases, as instances have them."""
    for base in kind.__mro__:
        for name, member in vars(base).items() if "__slots__" in vars(base) else ():
            is_slot = isinstance(member, types.MemberDescriptorType)
            if is_slot and name not in ("__dict__", "__weakref__"):
                yield name


def _slot(target: Any, name: str) -> Any:
    try:
        return object.__getattribute__(target, name)
    except AttributeError:
        return MISSING


#: The kinds of inspected containers, each with the holder of its content.
CONTAINERS: tuple[tuple[type, type[Holder]], ...] = (
    (dict, Items),
    (list, Elements),
    (deque, Elements),
    (set, Members),
)
KINDS = tuple(kind for kind, _ in CONTAINERS)
