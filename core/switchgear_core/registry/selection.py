"""The single place that picks the executor and rules of a bound symbol: the sources asked, their order, the winner."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from switchgear_core.errors import ExecutorUnavailable, InvalidInput, RuleError, warn, warn_once
from switchgear_core.ir.choice import Declined, Implementation
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.record.handler import Feature, Handlers, enabled
from switchgear_core.record.recorder import active_recorder
from switchgear_core.record.sizes import depends_on_sizes
from switchgear_core.registry.answers import Answers
from switchgear_core.registry.code import code_of
from switchgear_core.registry.executor import Executor, FusionExecutor, reason_unavailable
from switchgear_core.registry.fuel import Fuel
from switchgear_core.registry.hookspecs import OF_THE_CALL, PassPlacement, Stage
from switchgear_core.registry.isolation import uncaptured
from switchgear_core.registry.order import (
    Executors,
    Order,
    configured,
    installed,
    order,
    passed_over,
)
from switchgear_core.registry.parts import Parts
from switchgear_core.registry.plugin import Chooser, Plugin, SkipRule
from switchgear_core.registry.plugins import Plugins
from switchgear_core.registry.plugins import installed as all_installed
from switchgear_core.registry.preferences import Preferences, preferences
from switchgear_core.registry.registry import GradRule, ImplementationEntry, Table, describe
from switchgear_core.registry.savings import AS_EAGER, Savings

#: Names of executors and rule sources that declined a bound symbol, with reasons, in order; skipped ones come first.
Reasons: TypeAlias = tuple[tuple[str, str], ...]
FIXED_SIZES = Declined("its regions are compiled for fixed sizes, and these are dynamic")


@dataclass(frozen=True, slots=True, eq=False)
class RuleSource:
    """A source of grad rules: an executor, a package of rules, or a table passed to the call.

    For messages, `label` is its name and version, and `remedy` is advice to continue without it.
    """

    name: str
    label: str
    remedy: str
    grad_rules: Mapping[str, GradRule]
    skip_rules: tuple[SkipRule, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Claimant(RuleSource):
    """An executor of the call, with its registrations and, for messages, its options; `is_listed` by the user."""

    executor: Executor
    implementations: Mapping[str, ImplementationEntry]
    options: str = ""
    is_listed: bool = False

    @property
    def code(self) -> str | None:
        """A digest of its code; None for the code of a script or a notebook."""
        return code_of(self.executor, iter(self.implementations.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The participants of a call of `jit`, and the three decisions about a bound symbol.

    `executors` can run here, in the order of asking; `skipped` are the others, with reasons. `passes` come from
    participating plugins and parts; `fuel` limits the number of fused regions. `choosers` choose the executors of
    regions, in this order. `passed_over` are installed and do not participate. `settings` are all options by name.
    """

    executors: tuple[Executor, ...]
    skipped: Reasons
    strict: bool
    passes: tuple[PassPlacement, ...]
    claimants: tuple[Claimant, ...]
    rule_sources: tuple[RuleSource, ...]
    fuel: Fuel
    choosers: tuple[Chooser, ...] = ()
    handlers: Handlers = field(default_factory=Handlers)
    passed_over: tuple[str, ...] = ()
    preferences: Preferences = field(default_factory=Preferences)
    check: bool = False
    #: The participants, packages included: by name, or as an object if not installed.
    team: tuple[str | Executor, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The choice of the tensors that are saved for a backward.
    savings: Savings = AS_EAGER
    parts: Parts = field(default_factory=Parts)
    #: Whether regions may be compiled later, or elsewhere.
    is_deferred: bool = False
    #: The known executors of regions, if any.
    answers: Answers | None = None
    #: The record of the outcome of each region.
    written: Answers | None = None

    @property
    def fusion(self) -> Mapping[str, FusionExecutor]:
        """The executors that run regions, by name."""
        return {
            executor.name: executor
            for executor in self.executors
            if isinstance(executor, FusionExecutor)
        }

    def passes_at(self, stage: Stage) -> tuple[PassPlacement, ...]:
        """Return the passes at a stage, in order."""
        return tuple([placement for placement in self.passes if placement.stage == stage])

    def without_fusion(self) -> Selection:
        """Return a copy without the fusion executors."""
        return self._with(one for one in self.executors if one.name not in self.fusion)

    def exact(self) -> Selection:
        """Return a copy with only the executors bit-identical to PyTorch; if none exist, without fusion executors."""
        exact = [executor for executor in self.executors if executor.is_exact]
        return self._with(exact) if exact else self.without_fusion()

    def _with(self, executors: Iterable[Executor]) -> Selection:
        rest = tuple(executors)
        return replace(
            self,
            executors=rest,
            claimants=tuple(one for one in self.claimants if one.executor in rest),
        )

    def constant(self, bound_symbol: BoundSymbol) -> tuple[bool, str]:
        """Check whether a skip rule excludes the bound symbol from differentiation; return the answer and the rule."""
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
        """Return the first grad rule that accepts the bound symbol, and the earlier sources that declined."""
        name = bound_symbol.symbol.name
        declined = list(self.skipped)
        for source in self.preferences.asked(self.rule_sources, name, declined):
            rule = source.grad_rules.get(name)
            if rule is None:
                declined.append((source.name, f"no grad rule for {name}"))
                continue
            with _blaming(
                source, "checker of the grad rule", rule.checker or rule.fn, bound_symbol
            ):
                objection = rule.declined(bound_symbol)
            if objection is None:
                rule = replace(rule, label=source.label, remedy=source.remedy)
                return rule, tuple(declined)
            declined.append((source.name, objection.reason))
        return None, tuple(declined)

    def implementation(self, bound_symbol: BoundSymbol) -> tuple[Implementation | None, Reasons]:
        """Return the first implementation of the bound symbol as a whole, and the earlier executors that declined."""
        declined = list(self.skipped)
        name = bound_symbol.symbol.name
        for claimant in self.preferences.asked(self.claimants, name, declined):
            answer = _answer(claimant, bound_symbol)
            if isinstance(answer, Implementation):
                return answer, tuple(declined)
            if answer is FIXED_SIZES and claimant.is_listed:
                self._tell_of_sizes(claimant)
            declined.append((claimant.name, answer.reason))
        return None, tuple(declined)

    def _tell_of_sizes(self, claimant: Claimant) -> None:
        message = f"executor {claimant.label} is listed and takes nothing whose sizes vary: {FIXED_SIZES.reason}"
        remedy = f"pass dynamic=False to have it compile each size, or {claimant.remedy}"
        if self.strict:
            raise ExecutorUnavailable(f"{message}; {remedy}")
        warn_once(f"{message}; {remedy}")

    def takers(self, bound_symbols: Sequence[BoundSymbol]) -> tuple[FusionExecutor, ...]:
        """Return the fusion executors that accept all bound symbols, in the order of asking."""
        fusion = self.fusion
        return tuple(
            fusion[claimant.name]
            for claimant in self.claimants
            if claimant.name in fusion
            and all(isinstance(_answer(claimant, item), Implementation) for item in bound_symbols)
        )


@uncaptured()
def select(
    plugins: Plugins,
    executors: Executors,
    settings: Mapping[str, Any] = MappingProxyType({}),
    parts: Parts | None = None,
) -> Selection:
    """Return the participants of a call of `jit` with these options.

    Their order is described in `order`. An executor that is listed and cannot run here is skipped with one
    `PluginWarning`; under `strict` this is an error.
    """
    parts = Parts() if parts is None else parts
    strict: bool = settings.get("strict", False)
    asked = configured(order(plugins, executors), plugins, settings.get("options") or {})
    is_deferred: bool = bool(
        parts.first("switchgear_defers", settings=settings, is_measured=_choosers(asked))
    )
    # executors that compile in a worker process are asked there
    reasons = {
        executor: None
        if is_deferred and _compiles_elsewhere(executor)
        else reason_unavailable(executor)
        for executor in asked.executors
    }
    for executor, reason in reasons.items():
        if reason is None:
            continue
        if executor.name in asked.named:
            if strict:
                raise ExecutorUnavailable(
                    f"executor {executor.name} cannot run here: {reason}; remove it from executors"
                )
            message = (
                f"executor {executor.name} is listed but skipped, it cannot run here: {reason}"
            )
            warn(message)
        elif executor.runs_everywhere and asked.is_measured:
            warn_once(
                f"executor {executor.name} cannot run here, regions are left to others: {reason}"
            )
    sources: list[RuleSource] = []
    homes: dict[str, Plugin] = {}
    for one in asked.asked:
        home = one if isinstance(one, Plugin) else _home(plugins, one)
        if isinstance(one, Plugin):
            sources.append(_package_source(one, asked.remedy(one.name)))
        elif reasons[one] is None:
            is_first = home is not None and home.name not in homes
            sources.append(_claimant(one, home, asked, first=is_first))
        else:
            continue
        if home is not None:
            homes[home.name] = home
    claimants = tuple(source for source in sources if isinstance(source, Claimant))
    tables = settings.get("grad_rules") or ()
    tables = (tables,) if isinstance(tables, (Table, str)) else tuple(tables)
    sources = [*(_table_source(plugins, table) for table in tables), *sources]
    names = [source.name for source in sources]
    preferred = preferences(settings.get("prefer") or {}, settings.get("avoid") or {}, names)
    taking_part = homes.values()
    fuel: int | Fuel | None = settings.get("fuel")
    choosers = [plugin.chooser for plugin in taking_part if plugin.chooser is not None]
    brought = [feature for plugin in taking_part for feature in plugin.features]
    skipped = {executor: why for executor, why in reasons.items() if why is not None}
    return Selection(
        executors=tuple(claimant.executor for claimant in claimants),
        skipped=tuple((one.name, f"unavailable: {why}") for one, why in skipped.items()),
        strict=strict,
        passes=_passes(
            settings.get("passes", ()),
            [*parts.passes, *(one for plugin in taking_part for one in plugin.passes)],
        ),
        claimants=claimants,
        rule_sources=tuple(sources),
        fuel=fuel if isinstance(fuel, Fuel) else Fuel(fuel),
        choosers=tuple(choosers) if asked.is_measured else (),
        handlers=Handlers(enabled((*parts.features, *brought), _features_of_others(plugins))),
        passed_over=passed_over(plugins, asked),
        preferences=preferred,
        check=settings.get("check", False),
        team=_team(asked, plugins, [*skipped]),
        settings=settings,
        savings=parts.first("switchgear_savings", settings=settings) or AS_EAGER,
        parts=parts,
        is_deferred=is_deferred,
    )


def _features_of_others(plugins: Plugins) -> Iterator[Feature]:
    """Yield the features of all installed plugins; the plugins are imported when a user names a feature not in use."""
    everyone = all_installed() if plugins.others else plugins
    yield from (feature for plugin in everyone.plugins for feature in plugin.features)


def _team(
    asked: Order, plugins: Plugins, skipped: Sequence[Executor]
) -> tuple[str | Executor, ...]:
    team: list[str | Executor] = []
    for one in asked.asked:
        if isinstance(one, Plugin) or one in plugins.executors:
            team += [] if one in skipped else [one.name]
        elif one not in skipped:
            team.append(one)
    return tuple(team)


def _choosers(asked: Order) -> bool:
    """Check whether a participating plugin chooses the executors of regions."""
    return asked.is_measured and any(
        isinstance(one, Plugin) and one.chooser is not None for one in asked.asked
    )


def _compiles_elsewhere(executor: Executor) -> bool:
    return isinstance(executor, FusionExecutor) and executor.finds_compiled


def _passes(
    own: Sequence[PassPlacement | str], brought: Sequence[PassPlacement]
) -> tuple[PassPlacement, ...]:
    """Return the passes of participating plugins except those left out, followed by the call's own."""
    names = {placement.name for placement in brought}
    left_out = {item.removeprefix("-") for item in own if isinstance(item, str)}
    for item in own:
        if isinstance(item, str) and (not item.startswith("-") or item[1:] not in names):
            raise InvalidInput(
                f"passes has {item!r}; a name stands with a minus, and leaves out one of these passes: "
                f"{', '.join(sorted(names)) or 'none are installed'}"
            )
    added = [replace(item, owner=OF_THE_CALL) for item in own if isinstance(item, PassPlacement)]
    return (*(placement for placement in brought if placement.name not in left_out), *added)


def _home(plugins: Plugins, executor: Executor) -> Plugin | None:
    """Return the installed plugin whose registrations an executor uses: its own, or by the same name and class."""
    installed = {own.name: own for own in plugins.executors}.get(executor.name)
    if installed is None:
        return None
    no_other_table = executor.table in (None, installed.table)
    same_kind = no_other_table and type(executor) is type(installed)
    return plugins.plugin_of[executor.name] if executor is installed or same_kind else None


def _claimant(executor: Executor, home: Plugin | None, asked: Order, *, first: bool) -> Claimant:
    """Return an executor with its plugin's registrations, or else those in its own table now.

    The skip rule of a plugin is asked once, with the `first` of its executors.
    """
    name = executor.name
    version = executor.version or (home.version if home else "")
    table = executor.table or Table(name)
    grad_rules = home.registry.grad_rules_of(name) if home else table.grad_rules
    implementations = home.registry.implementations_of(name) if home else table.implementations
    own = SkipRule(executor.is_constant_for_vjp, executor.is_constant_for_vjp)
    skip_rules = (own, *(_skip_rules(home) if home and first else ()))
    given = asked.options.get(name, {})
    options = f"({', '.join(f'{key}={value!r}' for key, value in given.items())})" if given else ""
    label = " ".join(filter(None, (name, version, options)))
    remedy = asked.remedy(name)
    rest = implementations, options, name in asked.named
    return Claimant(name, label, remedy, grad_rules, skip_rules, executor, *rest)


def _skip_rules(plugin: Plugin) -> tuple[SkipRule, ...]:
    return () if plugin.skip_rule is None else (plugin.skip_rule,)


def _table_source(plugins: Plugins, table: Table | str) -> RuleSource:
    """Return the source for a table of the call, or for the rules of an installed plugin by name."""
    remedy = "leave it out of grad_rules"
    if isinstance(table, str):
        one = installed(plugins, table)
        if isinstance(one, Plugin):
            return replace(_package_source(one, remedy), skip_rules=())
        rules = plugins.registry.grad_rules_of(one.name)
        return RuleSource(one.name, f"grad rules of {one.name}", remedy, rules, ())
    if not isinstance(table, Table):
        raise TypeError(f"grad_rules is a Table, a name, or a sequence of these, not {table!r}")
    label = f"grad_rules of the call ({table.owner})"
    return RuleSource(table.owner, label, remedy, table.grad_rules, ())


def _package_source(package: Plugin, remedy: str) -> RuleSource:
    rules = {
        name: rule
        for owner in package.owners
        for name, rule in package.registry.grad_rules_of(owner).items()
    }
    return RuleSource(package.name, package.label, remedy, rules, _skip_rules(package))


def _answer(claimant: Claimant, bound_symbol: BoundSymbol) -> Implementation | Declined:
    executor = claimant.executor
    if (
        isinstance(executor, FusionExecutor)
        and not executor.symbolic_sizes
        and depends_on_sizes(bound_symbol)
    ):
        return FIXED_SIZES
    entry = claimant.implementations.get(bound_symbol.symbol.name)
    asked = executor.claim if entry is None else entry.checker or executor.claim
    with _blaming(claimant, "executor's claim", asked, bound_symbol):
        return _claim_or_reason(executor, executor.claim(bound_symbol, entry))


def _claim_or_reason(executor: Executor, answer: object) -> Implementation | Declined:
    if not isinstance(answer, (Implementation, Declined)):
        raise TypeError(f"claim returns an Implementation or Declined(reason), not {answer!r}")
    if isinstance(answer, Implementation) and answer.owner != executor.name:
        raise ValueError(
            f"the implementation that executor {executor.name} claims with is owned by it, not by {answer.owner}"
        )
    return answer


@dataclass(slots=True)
class _blaming:
    """Context that names the owner of failing code; a class, because each bound symbol enters it repeatedly."""

    source: RuleSource
    role: str
    fn: Callable[..., Any]
    bound_symbol: BoundSymbol
    outside: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        if active_recorder() is not None:  # a capture in which a derivative is taken
            self.outside = uncaptured()
            self.outside.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.outside is not None:
            self.outside.__exit__(None, None, None)
        if not isinstance(error, Exception):
            return
        call = self.bound_symbol
        place = f", called at {call.source}" if call.source else ""
        fault = f"{self.role} {describe(self.fn)} raised {type(error).__name__}: {error}"
        way_out = f"for {call.symbol.name}{place}; to go on without it, {self.source.remedy}"
        raise RuleError(f"{self.source.label}: {fault}\n  {way_out}") from error
