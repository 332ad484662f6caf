"""Holdings: a holder for each mutable place that a function has reached, and which of them it has changed."""

from __future__ import annotations

import types
from typing import Any, TypeVar

from switchgear.features.python_state.holders import (
    Attributes,
    Content,
    Holder,
    Items,
    Variables,
    dict_base,
    items_of,
)

_H = TypeVar("_H", bound=Holder)


class Holdings:
    """Holders by the ids of their targets; of what is empty, as most dicts of modules and functions are, none yet."""

    def __init__(self) -> None:
        self.holders: dict[int, Holder] = {}
        self._symbolic: list[Holder] = []
        #: Dicts that were empty, each with its owner and name.
        self._empty: dict[int, tuple[dict[Any, Any], str, str]] = {}
        #: The attributes that code sets: variables of modules, among others.
        self.names_set: set[str] = set()

    def __contains__(self, target: object) -> bool:
        return id(target) in self.holders or id(target) in self._empty

    def hold(self, kind: type[_H], target: Any, label: str) -> _H:
        """The holder of a target, of this kind if it has none yet."""
        holder: Any = self.holders.get(id(target))
        if holder is None:
            holder = self.holders[id(target)] = kind(target, label)
            if self._empty.pop(id(target), None) is not None:
                holder.was_empty()
        return holder  # type: ignore[no-any-return]

    def hold_dict(self, target: dict[Any, Any], owner: str, name: str) -> Content:
        """What a dict of an owner's held at first."""
        if id(target) in self._empty:
            return {}
        if dict.__len__(target) or id(target) in self.holders:
            return self.hold(_kind_of(name), target, f"{owner}.{name}").before
        self._empty[id(target)] = target, owner, name
        return {}

    def make_symbolic(self, holder: Holder, key: object, number: Any) -> None:
        """Have `number` stand at a key, until all is put back."""
        holder.make_symbolic(key, number)
        self._symbolic.append(holder)

    def content(self, value: Any) -> Content:
        """What a container held when it was reached."""
        holder = self.holders.get(id(value))
        if holder is not None:
            return holder.at_first
        if isinstance(value, dict):
            return dict(dict_base(value).items(value))
        is_proxy = isinstance(value, types.MappingProxyType)
        return dict(value if is_proxy else enumerate(items_of(value)))

    def changed(self) -> list[Holder]:
        """The holders whose content has changed since they were reached."""
        for target, owner, name in [held for held in self._empty.values() if held[0]]:
            self.hold(_kind_of(name), target, f"{owner}.{name}")
        for holder in self.holders.values() if self.names_set else ():
            if isinstance(holder, Variables) and not holder.is_untouched():
                holder.watch(self.names_set)
        return [holder for holder in self.holders.values() if holder.changed()]

    def put_back(self) -> str:
        """Give every target what it held at first; the label of one that held something else."""
        changed = self.changed()
        for holder in (*changed, *self._symbolic):
            holder.put_back()
        self._symbolic.clear()
        return changed[-1].label if changed else ""

    def clear(self) -> None:
        """Let go of all, and of tensors that nobody else may hold."""
        for holder in self.holders.values():
            holder.before = holder.all = {}
        self.holders.clear()
        self._empty.clear()


def _kind_of(name: str) -> type[Items]:
    """Of the dict that an attribute of that name holds."""
    return Attributes if name == "__dict__" else Items
