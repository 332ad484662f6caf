"""The one place that decides who is asked about a bound symbol in a call of `jit`, in which order, and who takes it."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .choice import Declined, Implementation
from .errors import ExecutorUnavailable, PluginWarning, RuleError, UnknownExecutor
from .executor import Executor, reason_unavailable
from .hookspecs import PassPlacement
from .plugins import DISABLE_VARIABLE, Plugin, Plugins, SkipRule
from .registry import GradRule, ImplementationEntry, Table, describe
from .symbol import BoundSymbol

#: Who was asked and did not take a bound symbol, and why, in the order asked; executors that were skipped come first.
Reasons: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class RuleSource:
    """One who is asked about gradients: an executor, a package of rules, or a table passed to the call (`jit`).

    `label` is its name and version, `remedy` how a user goes on without it, for messages.
    """

    name: str
    label: str
    remedy: str
    grad_rules: Mapping[str, GradRule]
    skip_rules: tuple[SkipRule, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Claimant:
    """An executor of the call, with what it registered."""

    executor: Executor
    implementations: Mapping[str, ImplementationEntry]
    rules: RuleSource


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Who takes part in a call of `jit`, and the three decisions about a bound symbol.

    `executors` are those that can run here, in the order asked; `skipped` pairs the others with the reason;
    `passes` are those of the plugins that take part.
    """

    executors: tuple[Executor, ...]
    skipped: Reasons
    strict: bool
    passes: tuple[PassPlacement, ...]
    claimants: tuple[Claimant, ...]
    rule_sources: tuple[RuleSource, ...]

    def constant(self, bound_symbol: BoundSymbol) -> tuple[bool, str]:
        """Whether a skip rule takes the bound symbol out of differentiation, and which rule answered."""
        for source in self.rule_sources:
            for rule in source.skip_rules:
                with _blaming(source, "skip rule", rule.source, bound_symbol):
                    answer = _yes_or_no(rule.fn(bound_symbol))
                if answer is not None:
                    return answer, f"skip rule of {source.name}: {describe(rule.source)}"
        return False, ""

    def grad_rule(self, bound_symbol: BoundSymbol) -> tuple[GradRule | None, Reasons]:
        """The first grad rule that accepts the bound symbol, and who declined before it."""
        name = bound_symbol.symbol.name
        declined = list(self.skipped)
        for source in self.rule_sources:
            rule = source.grad_rules.get(name)
            if rule is None:
                declined.append((source.name, f"no grad rule for {name}"))
                continue
            with _blaming(source, "checker of the grad rule", rule.checker or rule.fn, bound_symbol):
                objection = rule.declined(bound_symbol)
            if objection is None:
                return rule, tuple(declined)
            declined.append((source.name, objection.reason))
        return None, tuple(declined)

    def implementation(self, bound_symbol: BoundSymbol) -> tuple[Implementation | None, Reasons]:
        """The first executor's implementation of the bound symbol as a whole, and who declined before it."""
        declined = list(self.skipped)
        for claimant in self.claimants:
            executor = claimant.executor
            entry = claimant.implementations.get(bound_symbol.symbol.name)
            asked = executor.claim if entry is None else entry.checker or executor.claim
            with _blaming(claimant.rules, "executor's claim", asked, bound_symbol):
                answer = _claim_or_reason(executor, executor.claim(bound_symbol, entry))
            if isinstance(answer, Implementation):
                return answer, tuple(declined)
            declined.append((executor.name, answer.reason))
        return None, tuple(declined)


def select(
    plugins: Plugins, executors: Sequence[str | Executor] | None, grad_rules: Sequence[Table], strict: bool
) -> Selection:
    """Who takes part in a call of `jit` with these options.

    Order: the user's list, else (declared priority, name). An executor that is listed and cannot run here is skipped
    with one `PluginWarning`; under `strict` that is an error.
    """
    available: list[Executor] = []
    skipped: list[tuple[str, str]] = []
    for executor in plugins.executors if executors is None else _listed(plugins, executors):
        reason = reason_unavailable(executor)
        if reason is None:
            available.append(executor)
            continue
        skipped.append((executor.name, f"unavailable: {reason}"))
        if executors is not None:
            _report_unavailable(executor, reason, strict)
    claimants = tuple(_claimants(plugins, available))
    homes = [home for executor in available if (home := _home(plugins, executor)) is not None]
    taking_part = [*dict.fromkeys(homes), *plugins.rule_packages]
    tables = [_table_source(table) for table in grad_rules]
    packages = [_package_source(plugins, package) for package in plugins.rule_packages]
    return Selection(
        executors=tuple(available),
        skipped=tuple(skipped),
        strict=strict,
        passes=tuple(placement for plugin in taking_part for placement in plugin.passes),
        claimants=claimants,
        rule_sources=(*tables, *(claimant.rules for claimant in claimants), *packages),
    )


def _listed(plugins: Plugins, executors: Sequence[str | Executor]) -> list[Executor]:
    if isinstance(executors, (str, Executor)):
        raise TypeError(f"executors is a list of names or Executor objects, not {executors!r}; write [{executors!r}]")
    known = {executor.name: executor for executor in plugins.executors}
    found: dict[str, Executor] = {}
    for item in executors:
        if not isinstance(item, (str, Executor)):
            raise TypeError(f"{item!r} in executors is neither a name nor an Executor object")
        if isinstance(item, str) and item not in known:
            raise UnknownExecutor(_unknown(item, plugins))
        executor = known[item] if isinstance(item, str) else item
        if executor.name in found:
            raise ValueError(f"executor {executor.name!r} is listed twice; list each once, the first is asked first")
        found[executor.name] = executor
    return list(found.values())


def _unknown(name: str, plugins: Plugins) -> str:
    known = [executor.name for executor in plugins.executors]
    for status in plugins.report:
        if status.error and name in (status.name, *status.executors):
            return f"executor {name!r} is not loaded: plugin {status.name} is {status.status}: {status.error}"
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no executor is called {name!r}{hint} (installed: {', '.join(known) or 'none'})"


def _report_unavailable(executor: Executor, reason: str, strict: bool) -> None:
    if strict:
        raise ExecutorUnavailable(f"executor {executor.name} cannot run here: {reason}; remove it from executors")
    message = f"executor {executor.name} is listed but skipped, it cannot run here: {reason}"
    warnings.warn(message, PluginWarning, stacklevel=4)


def _claimants(plugins: Plugins, executors: Sequence[Executor]) -> Iterator[Claimant]:
    heard: set[Plugin] = set()
    for executor in executors:
        home = _home(plugins, executor)
        skip_rules = _own_skip_rule(executor)
        if home is not None and home not in heard:
            heard.add(home)
            skip_rules += _skip_rules(home)
        version = executor.version or (home.version if home else "")
        label = f"{executor.name} {version}".strip()
        implementations, grad_rules = _registered(plugins, executor, home)
        rules = RuleSource(executor.name, label, f"leave {executor.name} out of executors", grad_rules, skip_rules)
        yield Claimant(executor, implementations, rules)


def _registered(
    plugins: Plugins, executor: Executor, home: Plugin | None
) -> tuple[Mapping[str, ImplementationEntry], Mapping[str, GradRule]]:
    """What the executor registered: through its plugin, else in its own table as it is now."""
    if home is not None:
        registry = plugins.registry
        return registry.implementations_of(executor.name), registry.grad_rules_of(executor.name)
    if executor.table is None:
        return {}, {}
    return dict(executor.table.implementations), dict(executor.table.grad_rules)


def _home(plugins: Plugins, executor: Executor) -> Plugin | None:
    """The plugin whose registrations an executor uses: an installed one's, or those of one of its name and kind."""
    plugin = plugins.plugin_of.get(executor.name)
    if plugin is None or executor in plugin.executors:
        return plugin
    kinds = {type(own) for own in plugin.executors if own.name == executor.name}
    return plugin if executor.table is None and type(executor) in kinds else None


def _own_skip_rule(executor: Executor) -> tuple[SkipRule, ...]:
    if type(executor).is_constant_for_vjp is Executor.is_constant_for_vjp:
        return ()
    return (SkipRule(executor.is_constant_for_vjp, executor.is_constant_for_vjp),)


def _skip_rules(plugin: Plugin) -> tuple[SkipRule, ...]:
    return () if plugin.skip_rule is None else (plugin.skip_rule,)


def _table_source(table: Table) -> RuleSource:
    if not isinstance(table, Table):
        raise TypeError(f"grad_rules is a Table or a sequence of them, not {table!r}")
    rules = {name: replace(rule, owner="jit") for name, rule in table.grad_rules.items()}
    return RuleSource("jit", f"grad_rules of the call ({table.owner})", "leave it out of grad_rules", rules)


def _package_source(plugins: Plugins, package: Plugin) -> RuleSource:
    rules = {name: rule for owner in package.owners for name, rule in plugins.registry.grad_rules_of(owner).items()}
    remedy = f"disable it with {DISABLE_VARIABLE}={package.name}"
    return RuleSource(package.name, package.label, remedy, rules, _skip_rules(package))


def _yes_or_no(answer: Any) -> bool | None:
    if answer is None or answer is True or answer is False:
        return answer
    raise TypeError(f"a skip rule returns True, False or None, not {answer!r}")


def _claim_or_reason(executor: Executor, answer: Any) -> Implementation | Declined:
    if isinstance(answer, Declined) or (isinstance(answer, Implementation) and answer.owner == executor.name):
        return answer
    if isinstance(answer, Implementation):
        raise ValueError(
            f"an Implementation that executor {executor.name} claims is owned by it, not by {answer.owner}"
        )
    raise TypeError(f"claim returns an Implementation or Declined(reason), not {answer!r}")


@contextmanager
def _blaming(source: RuleSource, role: str, fn: Callable[..., Any], bound_symbol: BoundSymbol) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        place = f", called at {bound_symbol.source}" if bound_symbol.source else ""
        raise RuleError(
            f"{source.label}: {role} {describe(fn)} raised {type(error).__name__}: {error}\n"
            f"  for {bound_symbol.symbol.name}{place}; to go on without it, {source.remedy}"
        ) from error
