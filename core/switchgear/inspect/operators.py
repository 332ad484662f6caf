"""Who registered something for which operator, in the order in which they are asked by default."""

from __future__ import annotations

from dataclasses import dataclass

from switchgear.who.order import order
from switchgear.who.plugins import Plugins


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """An operator, and the names of those who brought something for it, the first asked first."""

    operator: str
    implemented_by: tuple[str, ...]
    differentiated_by: tuple[str, ...]


def operator_rows(plugins: Plugins) -> list[OperatorRow]:
    """One row an operator, by name. What executors decide in code (`claim`, `supports`) is not among them."""
    rank = {one.name: place for place, one in enumerate(order(plugins, "auto").asked)}
    packages = {owner: one.name for one in plugins.rule_packages for owner in one.owners}
    names = {
        owner: packages.get(owner, owner) for plugin in plugins.plugins for owner in plugin.owners
    }
    registry = plugins.registry
    brought = [
        (names[owner], registry.implementations_of(owner), registry.grad_rules_of(owner))
        for owner in sorted(names, key=lambda owner: rank[names[owner]])
    ]
    operators = {name for _, *tables in brought for table in tables for name in table}
    return [
        OperatorRow(
            operator,
            tuple(name for name, implemented, _ in brought if operator in implemented),
            tuple(name for name, _, differentiated in brought if operator in differentiated),
        )
        for operator in sorted(operators)
    ]
