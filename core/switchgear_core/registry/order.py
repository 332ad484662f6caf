"""Order: the participants of a call of `jit`, by its options, and the `Selection` that they make.

A list is complete: executors, and packages of rules alone, by name or as objects, the first asked first; others do not
participate. In a list, `...` stands for the default participants not named there, and "-name" leaves out a default
participant. The default participants are the installed executors, by (priority, name), fusion executors before others
of priority 0 or less, and then the packages, by (priority, name). "auto" is `[...]`. None asks executors by (priority,
name) alone, and no plugin chooses the executors of regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType, MappingProxyType
from typing import Any, Literal, TypeAlias

from switchgear_core.errors import (
    ExecutorUnavailable,
    InvalidInput,
    UnknownExecutor,
    did_you_mean,
    warn,
    warn_once,
)
from switchgear_core.record.handler import Feature, Handlers, enabled
from switchgear_core.registry.executor import Executor, FusionExecutor, reason_unavailable
from switchgear_core.registry.fuel import Fuel
from switchgear_core.registry.hookspecs import OF_THE_CALL, PassPlacement
from switchgear_core.registry.isolation import uncaptured
from switchgear_core.registry.parts import Parts
from switchgear_core.registry.plugin import Plugin, SkipRule
from switchgear_core.registry.plugins import Plugins
from switchgear_core.registry.plugins import installed as all_installed
from switchgear_core.registry.preferences import preferences
from switchgear_core.registry.registry import Table
from switchgear_core.registry.savings import AS_EAGER
from switchgear_core.registry.selection import Claimant, RuleSource, Selection

#: The option `executors` of `jit`.
Executors: TypeAlias = Sequence["str | Executor | EllipsisType"] | Literal["auto"] | None
#: The option `options` of `jit`: an executor's options, by its name.
ExecutorOptions: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Executors and packages of rules, in the order of asking; `names` are the names written by the user.

    `is_measured`: plugins may choose the executors of regions. `options` holds options of executors, by name.
    """

    participants: tuple[Executor | Plugin, ...]
    names: frozenset[str]
    is_measured: bool
    options: ExecutorOptions = field(default_factory=dict)

    @property
    def executors(self) -> tuple[Executor, ...]:
        """The executors among the participants."""
        return tuple([one for one in self.participants if isinstance(one, Executor)])

    def remedy(self, name: str) -> str:
        """Return advice for a user to continue without a participant."""
        return (
            f"leave {name} out of executors"
            if name in self.names
            else f"pass executors=[..., '-{name}']"
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
    candidates = configured(order(plugins, executors), plugins, settings.get("options") or {})
    has_chooser = candidates.is_measured and any(
        isinstance(one, Plugin) and one.chooser is not None for one in candidates.participants
    )
    is_deferred = bool(parts.first("switchgear_defers", settings=settings, is_measured=has_chooser))
    reasons = _reasons_against(candidates, is_deferred, strict)
    sources, taking_part = _sources(plugins, candidates, reasons)
    claimants = tuple(source for source in sources if isinstance(source, Claimant))
    tables = settings.get("grad_rules") or ()
    tables = (tables,) if isinstance(tables, (Table, str)) else tuple(tables)
    sources = [*(_table_source(plugins, table) for table in tables), *sources]
    names = [source.name for source in sources]
    preferred = preferences(settings.get("prefer") or {}, settings.get("avoid") or {}, names)
    fuel: int | Fuel | None = settings.get("fuel")
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
        choosers=tuple(p.chooser for p in taking_part if p.chooser and candidates.is_measured),
        handlers=Handlers(enabled((*parts.features, *brought), _features_of_others(plugins))),
        passed_over=passed_over(plugins, candidates),
        preferences=preferred,
        check=settings.get("check", False),
        team=_team(candidates, plugins, [*skipped]),
        settings=settings,
        savings=parts.first("switchgear_savings", settings=settings) or AS_EAGER,
        parts=parts,
        is_deferred=is_deferred,
    )


def _reasons_against(
    candidates: Order, is_deferred: bool, strict: bool
) -> dict[Executor, str | None]:
    """Return why each executor cannot run here, None if it can; tell of those that a user expects.

    Raises:
        ExecutorUnavailable: under `strict`, a listed executor cannot run here.
    """
    # executors that compile in a worker process are asked there
    reasons = {
        executor: None
        if is_deferred and isinstance(executor, FusionExecutor) and executor.finds_compiled
        else reason_unavailable(executor)
        for executor in candidates.executors
    }
    for executor, reason in reasons.items():
        if reason is None:
            continue
        if executor.name in candidates.names:
            if strict:
                raise ExecutorUnavailable(
                    f"executor {executor.name} cannot run here: {reason}; remove it from executors"
                )
            warn(f"executor {executor.name} is listed but skipped, it cannot run here: {reason}")
        elif executor.runs_everywhere and candidates.is_measured:
            warn_once(
                f"executor {executor.name} cannot run here, regions are left to others: {reason}"
            )
    return reasons


def _sources(
    plugins: Plugins, candidates: Order, reasons: Mapping[Executor, str | None]
) -> tuple[list[RuleSource], list[Plugin]]:
    """Return the sources of rules in the order of asking, and the plugins that take part."""
    sources: list[RuleSource] = []
    homes: dict[str, Plugin] = {}
    for one in candidates.participants:
        plugin = one if isinstance(one, Plugin) else _home(plugins, one)
        if isinstance(one, Plugin):
            sources.append(_package_source(one, candidates.remedy(one.name)))
        elif reasons[one] is None:
            is_first = plugin is not None and plugin.name not in homes
            sources.append(_claimant(one, plugin, candidates, first=is_first))
        else:
            continue
        if plugin is not None:
            homes[plugin.name] = plugin
    return sources, [*homes.values()]


def _features_of_others(plugins: Plugins) -> Iterator[Feature]:
    """Yield the features of all installed plugins; the plugins are imported when a user names a feature not in use."""
    everyone = all_installed() if plugins.others else plugins
    yield from (feature for plugin in everyone.plugins for feature in plugin.features)


def _team(
    candidates: Order, plugins: Plugins, skipped: Sequence[Executor]
) -> tuple[str | Executor, ...]:
    team: list[str | Executor] = []
    for one in candidates.participants:
        if isinstance(one, Plugin) or one in plugins.executors:
            team += [] if one in skipped else [one.name]
        elif one not in skipped:
            team.append(one)
    return tuple(team)


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
    own = {one.name: one for one in plugins.executors}.get(executor.name)
    if own is None:
        return None
    is_alike = executor.table in (None, own.table) and type(executor) is type(own)
    return plugins.plugin_of[executor.name] if executor is own or is_alike else None


def _claimant(
    executor: Executor, plugin: Plugin | None, candidates: Order, *, first: bool
) -> Claimant:
    """Return an executor with its plugin's registrations, or else those in its own table now.

    The skip rule of a plugin is asked once, with the `first` of its executors.
    """
    name = executor.name
    version = executor.version or (plugin.version if plugin else "")
    table = executor.table or Table(name)
    grad_rules = plugin.registry.grad_rules_of(name) if plugin else table.grad_rules
    implementations = plugin.registry.implementations_of(name) if plugin else table.implementations
    own = SkipRule(executor.is_constant_for_vjp, executor.is_constant_for_vjp)
    skip_rules = (own, *(_skip_rules(plugin) if plugin and first else ()))
    values = candidates.options.get(name, {})
    options = (
        f"({', '.join(f'{key}={value!r}' for key, value in values.items())})" if values else ""
    )
    label = " ".join(filter(None, (name, version, options)))
    remedy = candidates.remedy(name)
    rest = implementations, options, name in candidates.names
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


def order(plugins: Plugins, executors: Executors) -> Order:
    """Return the participants. Raises `UnknownExecutor`, `ValueError` and `TypeError` for an invalid list."""
    if executors is None:
        return Order(_everyone(plugins), frozenset(), False)
    if executors != "auto" and isinstance(executors, (str, Executor)):
        raise TypeError(
            f"executors is a list of names or Executor objects, not {executors!r}; write [{executors!r}]"
        )
    if not isinstance(executors, Sequence):
        raise TypeError(
            f"executors={executors!r} is not a list, of which the first is asked first; write ['torch']"
        )
    by_name: dict[str, Executor | Plugin | EllipsisType] = {}
    left_out: set[str] = set()
    for place, item in enumerate((...,) if executors == "auto" else executors):
        if isinstance(item, str) and item.startswith("-"):
            left_out.add(installed(plugins, item[1:]).name)
            continue
        one = installed(plugins, item) if isinstance(item, str) else item
        if not isinstance(one, (Executor, Plugin, EllipsisType)):
            raise _no_executor(place, one)
        if isinstance(one, Executor) and getattr(one, "name", None) is None:
            kind = type(one).__name__
            raise TypeError(f"{kind}.__init__ does not call super().__init__(name), which names it")
        name = "..." if isinstance(one, EllipsisType) else one.name
        if name in by_name:
            raise InvalidInput(
                f"executor {name!r} is listed twice; list each once, the first is asked first"
            )
        by_name[name] = one
    if left_out and "..." not in by_name:
        name = min(left_out)
        raise InvalidInput(
            f"'-{name}' leaves out one of the default ones: write executors=[..., '-{name}']"
        )
    fusing_first = sorted(
        plugins.executors, key=lambda one: not isinstance(one, FusionExecutor) and one.priority <= 0
    )
    default: tuple[Executor | Plugin, ...] = (*fusing_first, *plugins.rule_packages)
    rest = [one for one in default if one.name not in by_name and one.name not in left_out]
    candidates: list[Executor | Plugin] = []
    for one in by_name.values():
        candidates += rest if isinstance(one, EllipsisType) else [one]
    return Order(tuple(candidates), frozenset(by_name) - {"..."}, True)


def configured(candidates: Order, plugins: Plugins, options: ExecutorOptions) -> Order:
    """Return the order with options of its executors. Raises `UnknownExecutor` and `InvalidInput` for others."""
    by_name = {one.name: one for one in candidates.participants}
    for name in options:
        if name not in by_name:
            raise UnknownExecutor(
                f"options: no executor {name!r} takes part in this call{did_you_mean(name, by_name)} "
                f"(those that do: {', '.join(by_name)})"
            )
        one = by_name[name]
        if isinstance(one, Plugin):
            raise InvalidInput(f"options names {name!r}, a package of rules, which has none")
        if one not in plugins.executors:
            raise InvalidInput(
                f"options names {name!r}, which is an object in executors: make it with its options"
            )
        by_name[name] = _with_options(one, options[name])
    return replace(candidates, participants=tuple(by_name.values()), options=options)


def _with_options(executor: Executor, options: Mapping[str, object]) -> Executor:
    try:
        other: Any = executor.configured(options)
    except InvalidInput:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"options of executor {executor.name}: {error}") from error
    if not isinstance(other, Executor) or other.name != executor.name:
        raise InvalidInput(
            f"executor {executor.name}, given options, makes {other!r}, which is none of its name"
        )
    return other


def installed(plugins: Plugins, name: str) -> Executor | Plugin:
    """Return the installed executor or package of rules with this name. Raises `UnknownExecutor`."""
    by_name = {one.name: one for one in _everyone(plugins)}
    if name in by_name:
        return by_name[name]
    for status in plugins.report:
        if status.error and name in (status.name, *status.executors):
            how = {"failed": "has failed", "conflict": "is in conflict"}.get(status.status)
            raise UnknownExecutor(
                f"{name!r} is not loaded: plugin {status.name} {how or f'is {status.status}'}: {status.error}"
            )
        if name == status.name and status.executors:
            raise UnknownExecutor(
                f"plugin {name!r} brings the executors {', '.join(status.executors)}; name these"
            )
    raise UnknownExecutor(
        f"no executor is called {name!r}{did_you_mean(name, by_name)} (installed: {', '.join(by_name) or 'none'})"
    )


def passed_over(plugins: Plugins, order: Order) -> tuple[str, ...]:
    """Return the names of installed executors and packages of rules that do not participate."""
    candidates = {one.name for one in order.participants}
    names = (*(one.name for one in _everyone(plugins)), *plugins.others)
    return tuple([name for name in names if name not in candidates])


def _everyone(plugins: Plugins) -> tuple[Executor | Plugin, ...]:
    return (*plugins.executors, *plugins.rule_packages)


def _no_executor(place: int, item: object) -> TypeError:
    remedy = "use a name such as 'torch', or an Executor object"
    if isinstance(item, Table):
        remedy = f"write sg.Executor({item.owner!r}, table=table)"
    elif isinstance(item, type) and issubclass(item, Executor):
        remedy = f"write {item.__name__}(), an object of the class"
    description = f"a {type(item).__name__}" if isinstance(item, Table) else repr(item)
    return TypeError(f"executors[{place}] is {description}; {remedy}")
