"""Holders: the mutable places of Python's that a function may read and write, each with what it held at first."""

from __future__ import annotations

import copy
import gc
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Set
from typing import Any, TypeAlias

import torch

from switchgear import torch_private as internals

#: What a holder holds, by key.
Content: TypeAlias = dict[Any, Any]
#: What a place that holds nothing gives.
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "nothing"})()


class Holder:
    """A mutable place. `before` is its content, by key, when it was reached; `label` says where that is.

    `hides_absence`: code may have asked for what is not there, and nobody knows.
    """

    hides_absence = False

    def __init__(self, target: Any, label: str) -> None:
        self.target = target
        self.label = label
        self.before = self.content()
        #: What else lay there at first.
        self.all: Content = {}
        #: What stands in the place of numbers while the function runs, by key.
        self.symbolic: Content = {}

    def bare(self) -> Holder:
        """Its kind and label alone."""
        twin = copy.copy(self)
        twin.target, twin.before, twin.all, twin.symbolic = None, {}, {}, {}
        return twin

    def content(self) -> Content:
        """What it holds now, by key."""
        raise NotImplementedError

    def put(self, content: Content) -> None:
        """Make it hold this."""
        raise NotImplementedError

    def changed(self) -> bool:
        """Whether it holds other objects than at first, or in another order."""
        return _differ(self.content(), self.at_first)

    @property
    def at_first(self) -> Content:
        """What the function met there."""
        return self.before | self.symbolic if self.symbolic else self.before

    def make_symbolic(self, key: Any, number: torch.SymInt) -> None:
        """Have the function meet this in the place of a number."""
        self.symbolic[key] = number
        self.put(self.content() | {key: number})

    def put_back(self) -> None:
        """Make it hold what it did at first."""
        self.put(self.before)
        self.symbolic = {}


class _InDict(Holder):
    """What lies in a dict, and so has not changed where nobody has written to that."""

    def __init__(self, target: Any, label: str) -> None:
        super().__init__(target, label)
        self._version = internals.dict_version(self._dict)
        if isinstance(target, OrderedDict):  # `move_to_end` writes past it
            self._version = None

    @property
    def _dict(self) -> dict[Any, Any]:
        return self.target  # type: ignore[no-any-return]

    def is_untouched(self) -> bool:
        """Whether nothing was written to the dict, as far as its version tells."""
        version = self._version
        return version is not None and internals.dict_version(self._dict) == version


class Items(_InDict):
    """A dict, an instance's `__dict__` among them."""

    def was_empty(self) -> None:
        """Record the initial content as empty."""
        self.before, self._version = {}, None

    def content(self) -> Content:
        """Its items."""
        target = self.target
        return target.copy() if type(target) is dict else dict(dict_base(target).items(target))

    def changed(self) -> bool:
        """Whether it holds other objects; most have not been written to."""
        if self.is_untouched():
            return False
        now = self.target if type(self.target) is dict else self.content()
        return _differ(now, self.at_first if self.symbolic else self.before)

    def put(self, content: Content) -> None:
        """Store only what differs, so that other threads see nothing else change."""
        target, base = self.target, dict_base(self.target)
        for key in [key for key in base.keys(target) if key not in content]:
            base.__delitem__(target, key)
        if [*base.keys(target)] != [*content][: len(base.keys(target))]:  # others come behind
            base.clear(target)
        for key, value in content.items():
            if base.get(target, key, MISSING) is not value:
                base.__setitem__(target, key, value)


class Attributes(Items):
    """The `__dict__` of a function or tensor."""

    hides_absence = True


def _differ(now: Mapping[Any, Any], before: Content) -> bool:
    """Whether these are other objects, or in another order."""
    if len(now) != len(before) or any(map(operator.is_not, now.values(), before.values())):
        return True
    return [*now] != [*before]


def items_of(value: Any) -> list[Any]:
    """The items of a container, past what its class makes of iteration."""
    if isinstance(value, dict):
        return [*dict_base(value).values(value)]
    if isinstance(value, types.MappingProxyType):
        return [*value.values()]
    bases: tuple[Any, ...] = (tuple, list, set, frozenset, deque)
    for base in bases:
        if isinstance(value, base):
            return [*base.__iter__(value)]
    return [*value]


def dict_base(target: Content) -> type[dict[Any, Any]]:
    """The built-in class whose methods change a dict, past those of a subclass."""
    return OrderedDict if isinstance(target, OrderedDict) else dict


class Variables(_InDict):
    """The global variables of a module that code names; others are not looked at."""

    hides_absence = True

    def __init__(self, target: dict[str, Any], label: str) -> None:
        self.names: set[str] = set()
        super().__init__(target, label)
        self.all = target.copy()

    def watch(self, names: Set[str]) -> list[str]:
        """Look at these variables from now on, too; those of them that are new and set."""
        fresh = names - self.names
        self.names |= fresh
        new = sorted(fresh & self.all.keys())
        self.before.update([(name, self.all[name]) for name in new])
        return new

    def content(self) -> Content:
        """Those that are set."""
        return {name: self.target[name] for name in sorted(self.names & self.target.keys())}

    def changed(self) -> bool:
        """Whether a variable is set otherwise."""
        if self.is_untouched():
            return False
        now, before = self.names & self.target.keys(), self.at_first
        return now != before.keys() or any(
            self.target[key] is not value for key, value in before.items()
        )

    def put(self, content: Content) -> None:
        """Set them."""
        for name in self.names:
            if name in content:
                self.target[name] = content[name]
            else:
                self.target.pop(name, None)


class Elements(Holder):
    """A list or deque."""

    def content(self) -> Content:
        """The elements by their places."""
        return dict(enumerate(items_of(self.target)))

    def put(self, content: Content) -> None:
        """Put these elements in the place of all."""
        if isinstance(self.target, list):
            self.target[:] = content.values()
            return
        self.target.clear()
        self.target.extend(content.values())


class Members(Holder):
    """A set."""

    def content(self) -> Content:
        """The members, each by itself."""
        return {member: member for member in self.target}

    def changed(self) -> bool:
        """Whether there are other members."""
        return self.content().keys() != self.before.keys()

    def put(self, content: Content) -> None:
        """Put these members in the place of all."""
        self.target.clear()
        self.target.update(content)


class Variable(Holder):
    """A variable that functions share: a cell."""

    def content(self) -> Content:
        """What it is bound to, if it is."""
        try:
            return {"cell_contents": self.target.cell_contents}
        except ValueError:
            return {}

    def put(self, content: Content) -> None:
        """Bind it."""
        if content:
            self.target.cell_contents = content["cell_contents"]
        else:
            del self.target.cell_contents


class Slots(Holder):
    """The attributes of an object that lie in slots."""

    def content(self) -> Content:
        """Those that are set."""
        values = {name: _slot(self.target, name) for name in slots_of(type(self.target))}
        return {name: value for name, value in values.items() if value is not MISSING}

    def put(self, content: Content) -> None:
        """Set them."""
        now = self.content()
        for name in now.keys() - content.keys():
            object.__delattr__(self.target, name)
        for name, value in content.items():
            if now.get(name, MISSING) is not value:
                object.__setattr__(self.target, name, value)


def dict_of(kind: type) -> dict[str, Any]:
    """The dict that the attributes of a class lie in."""
    found: dict[str, Any] = gc.get_referents(vars(kind))[0]
    return found


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
        """Whether one is otherwise; of most nothing at all is."""
        if self.is_untouched():
            return False
        return _differ(vars(self.target), self.all) and super().changed()

    def content(self) -> Content:
        """Those that code sets; how attributes are read is changed while a function is captured."""
        attributes = vars(self.target).items()
        return {name: value for name, value in attributes if name not in NOT_SET}

    def put(self, content: Content) -> None:
        """Set them."""
        now = self.content()
        for name in now.keys() - content.keys():
            delattr(self.target, name)
        for name, value in content.items():
            if now.get(name, MISSING) is not value:
                setattr(self.target, name, value)


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
    """The names of the slots of a class and its bases, as instances have them."""
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


#: The kinds of containers that can be looked into, and what holds their content.
CONTAINERS: tuple[tuple[type, type[Holder]], ...] = (
    (dict, Items),
    (list, Elements),
    (deque, Elements),
    (set, Members),
)
KINDS = tuple(kind for kind, _ in CONTAINERS)
