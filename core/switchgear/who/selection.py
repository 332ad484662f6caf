"""The one place that decides who is asked about a bound symbol in a call of `jit`, in which order, and who takes it."""

from __future__ import annotations

import difflib
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from switchgear.capture.handler import Feature, Handlers, enabled
from switchgear.capture.sizes import depends_on_sizes
from switchgear.errors import ExecutorUnavailable, PluginWarning, RuleError, UnknownExecutor
from switchgear.ir.choice import Declined, Implementation
from switchgear.ir.symbol import BoundSymbol
from switchgear.who.executor import Executor, FusionExecutor, reason_unavailable
from switchgear.who.fuel import Fuel
from switchgear.who.hookspecs import PassPlacement, Stage
from switchgear.who.memory import Memory
from switchgear.who.plugins import DISABLE_VARIABLE, Chooser, Plugin, Plugins, SkipRule
from switchgear.who.registry import GradRule, ImplementationEntry, Table, describe

#: Who was asked and did not take a bound symbol, and why, in the order asked; executors that were skipped come first.
Reasons: TypeAlias = tuple[tuple[str, str], ...]
#: Who is asked, in order; None is all that are installed, "auto" too, those that fuse first and as plugins choose.
Executors: TypeAlias = Sequence[str | Executor] | Literal["auto"] | None


@dataclass(frozen=True, slots=True, eq=False)
class RuleSource:
    """One who is asked about gradients: an executor, a package of rules, or a table passed to the call (`jit`).

    `label` is its name and version, `remedy` how a user goes on without it, for messages.
    """

    name: str
    label: str
    remedy: str
    grad_rules: Mapping[str, GradRule]
    skip_rules: tuple[SkipRule, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Claimant(RuleSource):
    """An executor of the call, with what it registered."""

    executor: Executor
    implementations: Mapping[str, ImplementationEntry]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Who takes part in a call of `jit`, and the three decisions about a bound symbol.

    `executors` are those that can run here, in the order asked; `skipped` pairs the others with the reason;
    `passes` are those of the plugins that take part. `memory` is the option of `jit`; `fuel` says how many regions may
    be fused; `choosers` are asked, in this order, who runs a region.
    """

    executors: tuple[Executor, ...]
    skipped: Reasons
    strict: bool
    passes: tuple[PassPlacement, ...]
    claimants: tuple[Claimant, ...]
    rule_sources: tuple[RuleSource, ...]
    memory: Memory
    fuel: Fuel
    choosers: tuple[Chooser, ...] = ()
    handlers: Handlers = field(default_factory=Handlers)

    @property
    def fusion(self) -> Mapping[str, FusionExecutor]:
        """Those of the executors that run regions, by name."""
        return {
            executor.name: executor
            for executor in self.executors
            if isinstance(executor, FusionExecutor)
        }

    def passes_at(self, stage: Stage) -> tuple[PassPlacement, ...]:
        """Those of the passes that run at a stage, in order."""
        return tuple([placement for placement in self.passes if placement.stage == stage])

    def without_fusion(self) -> Selection:
        """The same without them."""
        rest = tuple(executor for executor in self.executors if executor.name not in self.fusion)
        return replace(
            self,
            executors=rest,
            claimants=tuple(one for one in self.claimants if one.executor in rest),
        )

    def constant(self, bound_symbol: BoundSymbol) -> tuple[bool, str]:
        """Whether a skip rule takes the bound symbol out of differentiation, and which rule answered."""
        for source in self.rule_sources:
            for rule in source.skip_rules:
                with _blaming(source, "skip rule", rule.source, bound_symbol):
                    answer = rule.fn(bound_symbol)
                    if answer is not None and not isinstance(answer, bool):
                        raise TypeError(f"a skip rule returns True, False or None, not {answer!r}")
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
            with _blaming(
                source, "checker of the grad rule", rule.checker or rule.fn, bound_symbol
            ):
                objection = rule.declined(bound_symbol)
            if objection is None:
                return rule, tuple(declined)
            declined.append((source.name, objection.reason))
        return None, tuple(declined)

    def implementation(self, bound_symbol: BoundSymbol) -> tuple[Implementation | None, Reasons]:
        """The first executor's implementation of the bound symbol as a whole, and who declined before it."""
        declined = list(self.skipped)
        for claimant in self.claimants:
            answer = _answer(claimant, bound_symbol)
            if isinstance(answer, Implementation):
                return answer, tuple(declined)
            declined.append((claimant.name, answer.reason))
        return None, tuple(declined)

    def takers(self, bound_symbols: Sequence[BoundSymbol]) -> tuple[FusionExecutor, ...]:
        """The fusion executors that accept every one of some bound symbols, in the order asked."""
        fusion = self.fusion
        return tuple(
            fusion[claimant.name]
            for claimant in self.claimants
            if claimant.name in fusion
            and all(isinstance(_answer(claimant, item), Implementation) for item in bound_symbols)
        )


def select(
    plugins: Plugins,
    executors: Executors,
    grad_rules: Sequence[Table],
    strict: bool,
    memory: Memory = "eager",
    fuel: int | Fuel | None = None,
    features: Sequence[Feature] = (),
) -> Selection:
    """Who takes part in a call of `jit` with these options.

    Order: the user's list, else (declared priority, name), under "auto" those that fuse first. An executor that is
    listed and cannot run here is skipped with one `PluginWarning`; under `strict` that is an error.
    """
    auto = executors == "auto"
    listed = None if executors is None or auto else executors
    asked: Sequence[Executor] = plugins.executors if listed is None else _listed(plugins, listed)
    if auto:
        asked = sorted(asked, key=lambda executor: not isinstance(executor, FusionExecutor))
    reasons = [(executor, reason_unavailable(executor)) for executor in asked]
    available = tuple(executor for executor, reason in reasons if reason is None)
    unavailable = [(executor.name, reason) for executor, reason in reasons if reason is not None]
    for name, reason in unavailable if listed is not None else ():
        if strict:
            raise ExecutorUnavailable(
                f"executor {name} cannot run here: {reason}; remove it from executors"
            )
        message = f"executor {name} is listed but skipped, it cannot run here: {reason}"
        warnings.warn(message, PluginWarning, stacklevel=3)
    for executor, fault in reasons if auto else ():
        if executor.runs_everywhere and fault is not None:
            _say_once(
                f"executor {executor.name} cannot run here, regions are left to others: {fault}"
            )
    skipped = tuple((name, f"unavailable: {reason}") for name, reason in unavailable)
    homes = [_home(plugins, executor) for executor in available]
    claimants = [
        _claimant(executor, homes[i], first=homes[i] not in homes[:i])
        for i, executor in enumerate(available)
    ]
    taking_part = [*dict.fromkeys(home for home in homes if home), *plugins.rule_packages]
    passes = tuple(placement for plugin in taking_part for placement in plugin.passes)
    choosers = (
        tuple([plugin.chooser for plugin in taking_part if plugin.chooser is not None])
        if auto
        else ()
    )
    brought = [feature for plugin in taking_part for feature in plugin.features]
    handlers = Handlers(enabled((*features, *brought)))
    rule_sources = (
        *map(_table_source, grad_rules),
        *claimants,
        *map(_package_source, plugins.rule_packages),
    )
    burnt = fuel if isinstance(fuel, Fuel) else Fuel(fuel)
    return Selection(
        available,
        skipped,
        strict,
        passes,
        tuple(claimants),
        rule_sources,
        memory,
        burnt,
        choosers,
        handlers,
    )


@functools.cache
def _say_once(message: str) -> None:
    warnings.warn(message, PluginWarning, stacklevel=4)


def _listed(plugins: Plugins, executors: Sequence[str | Executor]) -> list[Executor]:
    if isinstance(executors, (str, Executor)):
        raise TypeError(
            f"executors is a list of names or Executor objects, not {executors!r}; write [{executors!r}]"
        )
    found: dict[str, Executor] = {}
    for item in executors:
        if not isinstance(item, (str, Executor)):
            raise _no_executor(item)
        executor = _installed(plugins, item) if isinstance(item, str) else item
        if executor.name in found:
            raise ValueError(
                f"executor {executor.name!r} is listed twice; list each once, the first is asked first"
            )
        found[executor.name] = executor
    return list(found.values())


def _no_executor(item: object) -> TypeError:
    hint = f"; write sg.Executor({item.owner!r}, table=table)" if isinstance(item, Table) else ""
    return TypeError(
        f"a {type(item).__name__} in executors is neither a name nor an Executor object{hint}"
    )


def _installed(plugins: Plugins, name: str) -> Executor:
    known = {executor.name: executor for executor in plugins.executors}
    if name in known:
        return known[name]
    for status in plugins.report:
        if status.error and name in (status.name, *status.executors):
            error = f"plugin {status.name} is {status.status}: {status.error}"
            raise UnknownExecutor(f"executor {name!r} is not loaded: {error}")
        if name == status.name and not status.executors:
            lacking = "its module has no hook switchgear_executors (see sg.hookimpl)"
            raise UnknownExecutor(f"plugin {name!r} is loaded and brings no executor: {lacking}")
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UnknownExecutor(
        f"no executor is called {name!r}{hint} (installed: {', '.join(known) or 'none'})"
    )


def _home(plugins: Plugins, executor: Executor) -> Plugin | None:
    """The plugin whose registrations an executor uses: an installed one's, or those of one of its name and kind."""
    installed = {own.name: own for own in plugins.executors}.get(executor.name)
    same_kind = executor.table is None and type(executor) is type(installed)
    return plugins.plugin_of[executor.name] if executor is installed or same_kind else None


def _claimant(executor: Executor, home: Plugin | None, first: bool) -> Claimant:
    """What the executor registered through its plugin, else in its own table as it is now.

    The skip rule of a plugin is asked once, with the `first` of its executors.
    """
    name = executor.name
    version = executor.version or (home.version if home else "")
    table = executor.table or Table(name)
    grad_rules = home.registry.grad_rules_of(name) if home else table.grad_rules
    implementations = home.registry.implementations_of(name) if home else table.implementations
    own = SkipRule(executor.is_constant_for_vjp, executor.is_constant_for_vjp)
    skip_rules = (own, *(_skip_rules(home) if home and first else ()))
    label, remedy = f"{name} {version}".strip(), f"leave {name} out of executors"
    return Claimant(name, label, remedy, grad_rules, skip_rules, executor, implementations)


def _skip_rules(plugin: Plugin) -> tuple[SkipRule, ...]:
    return () if plugin.skip_rule is None else (plugin.skip_rule,)


def _table_source(table: Table) -> RuleSource:
    if not isinstance(table, Table):
        raise TypeError(f"grad_rules is a Table or a sequence of them, not {table!r}")
    rules = {name: replace(rule, owner="jit") for name, rule in table.grad_rules.items()}
    return RuleSource(
        "jit", f"grad_rules of the call ({table.owner})", "leave it out of grad_rules", rules, ()
    )


def _package_source(package: Plugin) -> RuleSource:
    rules = {
        name: rule
        for owner in package.owners
        for name, rule in package.registry.grad_rules_of(owner).items()
    }
    remedy = f"disable it with {DISABLE_VARIABLE}={package.name}"
    return RuleSource(package.name, package.label, remedy, rules, _skip_rules(package))


def _answer(claimant: Claimant, bound_symbol: BoundSymbol) -> Implementation | Declined:
    executor = claimant.executor
    if (
        isinstance(executor, FusionExecutor)
        and not executor.symbolic_sizes
        and depends_on_sizes(bound_symbol)
    ):
        return Declined("its regions are compiled for fixed sizes, and these are dynamic")
    entry = claimant.implementations.get(bound_symbol.symbol.name)
    asked = executor.claim if entry is None else entry.checker or executor.claim
    with _blaming(claimant, "executor's claim", asked, bound_symbol):
        return _claim_or_reason(executor, executor.claim(bound_symbol, entry))


def _claim_or_reason(executor: Executor, answer: Any) -> Implementation | Declined:
    if not isinstance(answer, (Implementation, Declined)):
        raise TypeError(f"claim returns an Implementation or Declined(reason), not {answer!r}")
    if isinstance(answer, Implementation) and answer.owner != executor.name:
        raise ValueError(
            f"what executor {executor.name} claims with is owned by it, not by {answer.owner}"
        )
    return answer


@dataclass(slots=True)
class _blaming:
    """Name whose code it is that raises inside; a class, for it is entered for every bound symbol again and again."""

    source: RuleSource
    role: str
    fn: Callable[..., Any]
    bound_symbol: BoundSymbol

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if not isinstance(error, Exception):
            return
        call = self.bound_symbol
        place = f", called at {call.source}" if call.source else ""
        fault = f"{self.role} {describe(self.fn)} raised {type(error).__name__}: {error}"
        way_out = f"for {call.symbol.name}{place}; to go on without it, {self.source.remedy}"
        raise RuleError(f"{self.source.label}: {fault}\n  {way_out}") from error
