"""The registrations for each operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from switchgear_core.registry.executor import reason_unavailable
from switchgear_core.registry.order import order
from switchgear_core.registry.plugins import Plugins
from switchgear_core.registry.registry import GradRule, ImplementationEntry, describe


@dataclass(frozen=True, slots=True)
class Brought:
    """A function that an owner registered for an operator, and its place in the source.

    `checker` may decline a call, `unavailable` is why its executor cannot run here; both may be empty.
    """

    owner: str
    version: str
    function: str
    checker: str = ""
    unavailable: str = ""

    def __str__(self) -> str:
        condition = f", where {self.checker} accepts" if self.checker else ""
        missing = f"; unavailable: {self.unavailable}" if self.unavailable else ""
        return f"{self.owner} {self.version}: {self.function}{condition}{missing}"


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operator and its registered functions, in the order in which their owners are asked."""

    operator: str
    implementations: list[Brought] = field(default_factory=list)
    grad_rules: list[Brought] = field(default_factory=list)

    def owners(self) -> tuple[list[str], list[str]]:
        """Return the owners of implementations, and those of grad rules."""
        implementations = [entry.owner for entry in self.implementations]
        return implementations, [entry.owner for entry in self.grad_rules]

    def __str__(self) -> str:
        lines = [f"  implementation: {entry}" for entry in self.implementations]
        lines += [f"  gradient: {entry}" for entry in self.grad_rules]
        return "\n".join([self.operator, *lines])


def operator_rows(plugins: Plugins) -> list[OperatorRow]:
    """Return one row for each operator, sorted by name."""
    rank = {entry.name: place for place, entry in enumerate(order(plugins, "auto").asked)}
    packages = {owner: source.name for source in plugins.rule_packages for owner in source.owners}
    owners = {owner: plugin for plugin in plugins.plugins for owner in plugin.owners}
    names = {owner: packages.get(owner, owner) for owner in owners}
    missing = {executor.name: reason_unavailable(executor) or "" for executor in plugins.executors}
    rows: dict[str, OperatorRow] = {}

    def add(owner: str, table: Mapping[str, ImplementationEntry | GradRule], place: str) -> None:
        for operator, entry in table.items():
            checker = "" if entry.checker is None else describe(entry.checker)
            texts = owners[owner].version, describe(entry.fn), checker, missing.get(owner, "")
            row = rows.setdefault(operator, OperatorRow(operator))
            getattr(row, place).append(Brought(names[owner], *texts))

    for owner in sorted(owners, key=lambda owner: rank[names[owner]]):
        add(owner, plugins.registry.implementations_of(owner), "implementations")
        add(owner, plugins.registry.grad_rules_of(owner), "grad_rules")
    return [rows[operator] for operator in sorted(rows)]
