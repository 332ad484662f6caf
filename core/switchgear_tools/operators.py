"""The registrations of all operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from switchgear_core.registry.executor import reason_unavailable
from switchgear_core.registry.order import order
from switchgear_core.registry.plugins import Plugins
from switchgear_core.registry.registry import GradRule, ImplementationEntry, describe

_Entries: TypeAlias = Callable[[str], Mapping[str, ImplementationEntry | GradRule]]


@dataclass(frozen=True, slots=True)
class Registration:
    """An implementation or a grad rule of an operator, with the place of its function in the source.

    `checker` may decline a call, `unavailable` is why its executor cannot run here; both may be empty.
    """

    operator: str
    kind: str
    owner: str
    version: str
    function: str
    checker: str
    unavailable: str


def registrations(plugins: Plugins) -> list[Registration]:
    """Return the registrations by operator, implementations first, then in the order in which owners are asked."""
    rank = {entry.name: place for place, entry in enumerate(order(plugins, "auto").participants)}
    packages = {owner: source.name for source in plugins.rule_packages for owner in source.owners}
    owners = {owner: plugin for plugin in plugins.plugins for owner in plugin.owners}
    names = {owner: packages.get(owner, owner) for owner in owners}
    missing = {executor.name: reason_unavailable(executor) or "" for executor in plugins.executors}
    kinds: list[tuple[str, _Entries]] = [
        ("implementation", plugins.registry.implementations_of),
        ("grad rule", plugins.registry.grad_rules_of),
    ]
    rows = [
        Registration(
            operator,
            kind,
            names[owner],
            owners[owner].version,
            describe(entry.fn),
            "" if entry.checker is None else describe(entry.checker),
            missing.get(owner, ""),
        )
        for kind, entries in kinds
        for owner in sorted(owners, key=lambda owner: rank[names[owner]])
        for operator, entry in entries(owner).items()
    ]
    return sorted(rows, key=lambda row: row.operator)
