"""Holdings: a holder for each mutable place reached by a function, and the set of changed places."""

from __future__ import annotations

import types
from typing import Any, TypeVar

from switchgear_python_state.holders import (
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
    """Holders by id of their targets."""

    def __init__(self) -> None:
        self.holders: dict[int, Holder] = {}
        self._symbolic: list[Holder] = []
        #: The attributes set by code, such as variables of modules.
        self.names_set: set[str] = set()

    def __contains__(self, target: object) -> bool:
        return id(target) in self.holders

    def hold(self, kind: type[_H], target: Any, label: str) -> _H:
        """Return the holder of a target; create a missing holder as `kind`."""
        holder: Any = self.holders.get(id(target))
        if holder is None:
            holder = self.holders[id(target)] = kind(target, label)
        return holder  # type: ignore[no-any-return]

    def hold_dict(self, target: dict[Any, Any], owner: str, name: str) -> Content:
        """Return the initial content of an owner's dict."""
        return self.hold(Attributes if name == "__dict__" else Items, target, f"{owner}.{name}").before

    def make_symbolic(self, holder: Holder, key: object, number: Any) -> None:
        """Put a symbolic number at a key, until everything is restored."""
        holder.make_symbolic(key, number)
        self._symbolic.append(holder)

    def content(self, value: Any) -> Content:
        """Return the initial content of a container."""
        holder = self.holders.get(id(value))
        if holder is not None:
            return holder.at_first
        if isinstance(value, dict):
            return dict(dict_base(value).items(value))
        is_proxy = isinstance(value, types.MappingProxyType)
        return dict(value if is_proxy else enumerate(items_of(value)))

    def changed(self) -> list[Holder]:
        """Return the holders with changed content."""
        for holder in self.holders.values() if self.names_set else ():
            if isinstance(holder, Variables) and not holder.is_untouched():
                holder.watch(self.names_set)
        return [holder for holder in self.holders.values() if holder.changed()]

    def put_back(self) -> str:
        """Restore the initial content of every target; return the label of a changed target."""
        changed = self.changed()
        for holder in (*changed, *self._symbolic):
            holder.put_back()
        self._symbolic.clear()
        return changed[-1].label if changed else ""

    def clear(self) -> None:
        """Release all holders, and with each holder its tensors."""
        for holder in self.holders.values():
            holder.before = holder.all = {}
        self.holders.clear()
