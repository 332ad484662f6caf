"""Executors: who runs bound symbols."""

from __future__ import annotations

from .choice import Declined, Implementation
from .errors import RegistrationError
from .registry import ImplementationEntry, Table, checked_owner
from .symbol import BoundSymbol


class Executor:
    """A named bringer of implementations; instantiate it, or subclass it to decide in code.

    Without a list of the user's, executors of higher `priority` are asked first, those of equal priority by name.
    `table` is for an executor that no plugin registers: its implementations and grad rules are then those of the table.
    """

    def __init__(self, name: str, *, priority: int = 0, version: str | None = None, table: Table | None = None) -> None:
        self.name = checked_owner(name)
        self.priority = priority
        self.version = version
        self.table = table
        if table is not None and table.owner != name:
            raise RegistrationError(f"executor {name} gets a table that belongs to {table.owner}; use Table({name!r})")

    def unavailable(self) -> str | None:
        """The reason why this executor cannot run here, such as a missing device; None when it can."""
        return None

    def claim(self, bound_symbol: BoundSymbol, entry: ImplementationEntry | None) -> Implementation | Declined:
        """Take the bound symbol or decline it; `entry` is what this executor registered for the symbol."""
        if entry is None:
            return Declined(f"no implementation of {bound_symbol.symbol.name}")
        return entry.declined(bound_symbol) or Implementation(self.name, entry.fn)

    def is_constant_for_vjp(self, bound_symbol: BoundSymbol) -> bool | None:
        """Whether the bound symbol takes no part in differentiation; None leaves that to the next one asked."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, priority={self.priority})"


def reason_unavailable(executor: Executor) -> str | None:
    """`executor.unavailable()`, an exception being a reason too."""
    try:
        return executor.unavailable()
    except Exception as error:
        return f"its availability check raised {type(error).__name__}: {error}"
