"""The registrations for each operator, and the executor that would be chosen by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from switchgear_core.registry.executor import Executor, reason_unavailable
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
    """An operator and its registered functions, in the order in which their owners are asked.

    `before` names executors that decide each call in code and are asked before the first with a registration.
    `skip_rules` names plugins that may exclude any call from differentiation.
    """

    operator: str
    implementations: tuple[Brought, ...]
    grad_rules: tuple[Brought, ...]
    before: tuple[str, ...]
    skip_rules: tuple[str, ...]

    @property
    def implemented_by(self) -> tuple[str, ...]:
        """The owners of implementations."""
        return tuple([entry.owner for entry in self.implementations])

    @property
    def differentiated_by(self) -> tuple[str, ...]:
        """The owners of grad rules."""
        return tuple([entry.owner for entry in self.grad_rules])

    def __str__(self) -> str:
        lines = [self.operator]
        for what, brought in (
            ("implementation", self.implementations),
            ("gradient", self.grad_rules),
        ):
            lines += [f"  {what}: {entry}" for entry in brought]
            lines += [f"  by default: {_winner(brought)}"] * bool(brought)
        for what, names in (
            ("asked before, and decide by the call", self.before),
            ("have skip rules, asked about every call", self.skip_rules),
        ):
            lines += [f"  {what}: {', '.join(names)}"] * bool(names)
        return "\n".join(lines)


def operator_rows(plugins: Plugins) -> list[OperatorRow]:
    """Return one row for each operator, sorted by name."""
    participants = order(plugins, "auto").participants
    rank = {participant.name: place for place, participant in enumerate(participants)}
    packages = {owner: source.name for source in plugins.rule_packages for owner in source.owners}
    owners = {owner: plugin for plugin in plugins.plugins for owner in plugin.owners}
    names = {owner: packages.get(owner, owner) for owner in owners}
    missing = {executor.name: reason_unavailable(executor) or "" for executor in plugins.executors}
    registry = plugins.registry
    by_operator: dict[str, tuple[list[Brought], list[Brought]]] = {}
    for owner in sorted(owners, key=lambda owner: rank[names[owner]]):
        tables: tuple[Mapping[str, ImplementationEntry | GradRule], ...] = (
            registry.implementations_of(owner),
            registry.grad_rules_of(owner),
        )
        for place, table in enumerate(tables):
            for operator, entry in table.items():
                owner_and_version = names[owner], owners[owner].version
                brought = _brought(*owner_and_version, entry, missing.get(owner, ""))
                by_operator.setdefault(operator, ([], []))[place].append(brought)
    in_code = [item.name for item in plugins.executors if type(item).claim is not Executor.claim]
    skipping = [plugin.name for plugin in plugins.plugins if plugin.skip_rule is not None]
    rows = []
    for operator, (implementations, grad_rules) in sorted(by_operator.items()):
        first = rank[implementations[0].owner] if implementations else 0
        before = [name for name in in_code if rank[name] < first and not missing[name]]
        before.sort(key=rank.__getitem__)
        sides = tuple(implementations), tuple(grad_rules)
        rows.append(OperatorRow(operator, *sides, tuple(before), tuple(skipping)))
    return rows


def _brought(
    owner: str, version: str, entry: ImplementationEntry | GradRule, missing: str
) -> Brought:
    checker = "" if entry.checker is None else describe(entry.checker)
    return Brought(owner, version, describe(entry.fn), checker, missing)


def _winner(brought: Sequence[Brought]) -> str:
    able = [entry for entry in brought if not entry.unavailable]
    if not able:
        return "nobody of these, for they cannot run here"
    sure = next((place for place, entry in enumerate(able) if not entry.checker), len(able) - 1)
    names = ", else ".join(entry.owner for entry in able[: sure + 1])
    return f"{names}, in the default order"
