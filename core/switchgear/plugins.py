"""Discovery: the installed plugins, each loaded alone, and a report of how that went."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar

import pluggy

from . import hookspecs
from .errors import PluginWarning, RegistrationError
from .executor import Executor, reason_unavailable
from .hookspecs import HOOKS, PROJECT, PassPlacement
from .registry import Registry
from .symbol import BoundSymbol

#: Names of plugins, separated by commas, that are refused before they are imported.
DISABLE_VARIABLE = "SWITCHGEAR_DISABLE"
_SKIP_HOOK = hookspecs.switchgear_is_constant_for_vjp.__name__

Status: TypeAlias = Literal["loaded", "disabled", "unavailable", "conflict", "failed"]
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """One line of the report: how loading a plugin went, and why not better."""

    name: str
    distribution: str
    version: str
    status: Status
    error: str = ""
    executors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SkipRule:
    """A `switchgear_is_constant_for_vjp`; `source` is the function that the plugin wrote, for messages."""

    fn: Callable[[BoundSymbol], bool | None]
    source: Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Plugin:
    """A loaded plugin. `owners` are the names it registered under, in order; `priority` ranks a package of rules."""

    name: str
    distribution: str
    version: str
    priority: int
    executors: tuple[Executor, ...]
    owners: tuple[str, ...]
    registry: Registry
    skip_rule: SkipRule | None
    passes: tuple[PassPlacement, ...]

    @property
    def label(self) -> str:
        """The plugin's name and version, for messages."""
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True, slots=True, eq=False)
class Plugins:
    """What is installed: a frozen registry, the executors and the plugins, both in total order, and the report."""

    registry: Registry
    executors: tuple[Executor, ...]
    plugins: tuple[Plugin, ...]
    report: tuple[PluginStatus, ...]

    @property
    def rule_packages(self) -> tuple[Plugin, ...]:
        """The plugins without executors, by (priority, name)."""
        return tuple(plugin for plugin in self.plugins if not plugin.executors)

    @property
    def plugin_of(self) -> Mapping[str, Plugin]:
        """The plugin that brings each executor, by the executor's name."""
        found = {executor.name: plugin for plugin in self.plugins for executor in plugin.executors}
        return MappingProxyType(found)


@functools.cache
def installed() -> Plugins:
    """The plugins of this process, loaded once."""
    return load()


def plugin_report() -> tuple[PluginStatus, ...]:
    """Every plugin that is installed, whether it was loaded, and if not, why."""
    return installed().report


def load(candidates: Iterable[EntryPoint] | None = None) -> Plugins:
    """Load the plugins behind `candidates`, by default all entry points of the group `switchgear`.

    Neither their order nor that of importing them matters. A plugin that cannot be loaded leaves nothing behind but one
    `PluginWarning` and its entry in the report.
    """
    chosen = entry_points(group=PROJECT) if candidates is None else candidates
    ordered = sorted(chosen, key=lambda entry: (entry.name, *_distribution(entry), entry.value))
    plugins, statuses = _load_each(ordered)
    plugins, faults = _without_faults(plugins)
    report = tuple(_reported(status, faults) for status in statuses)
    for status in report:
        if status.status in ("failed", "conflict"):
            message = f"plugin {status.name} is not used ({status.status}): {status.error}"
            warnings.warn(message, PluginWarning, stacklevel=3)
    return _assembled(plugins, report)


def _load_each(ordered: Sequence[EntryPoint]) -> tuple[list[Plugin], list[PluginStatus]]:
    disabled = {name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(",")}
    count = Counter(entry.name for entry in ordered)
    plugins, statuses = [], []
    for entry in ordered:
        status = PluginStatus(entry.name, *_distribution(entry), "loaded")
        if entry.name in disabled:
            status = replace(status, status="disabled", error=f"named in {DISABLE_VARIABLE}")
        elif count[entry.name] > 1:
            status = replace(status, status="conflict", error=_rivals(entry.name, ordered))
        else:
            try:
                plugin = _load_one(entry)
            except (Exception, SystemExit) as error:
                status = replace(status, status="failed", error=_told(error))
            else:
                plugins.append(plugin)
                status = _with_availability(status, plugin)
        statuses.append(status)
    return plugins, statuses


def _told(error: BaseException) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])


def _rivals(name: str, ordered: Sequence[EntryPoint]) -> str:
    rivals = [entry for entry in ordered if entry.name == name]
    claims = " and ".join(f"{_distribution(rival)[0] or 'no distribution'} ({rival.value})" for rival in rivals)
    return f"{claims} all call their plugin {name}; uninstall all but one"


def _with_availability(status: PluginStatus, plugin: Plugin) -> PluginStatus:
    names = tuple(executor.name for executor in plugin.executors)
    reasons = {executor.name: reason_unavailable(executor) for executor in plugin.executors}
    if not names or None in reasons.values():
        return replace(status, executors=names)
    error = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return replace(status, status="unavailable", error=error, executors=names)


def _load_one(entry: EntryPoint) -> Plugin:
    module = entry.load()
    _check_hook_names(module)
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(module, entry.name)
    executors = _collected(manager, "switchgear_executors", Executor)
    priority = getattr(module, "switchgear_priority", 0)
    _check_priorities(priority, *(executor.priority for executor in executors))
    registry = _registered(manager, executors)
    distribution, version = _distribution(entry)
    used = registry.implementation_owners | registry.grad_rule_owners
    return Plugin(
        name=entry.name,
        distribution=distribution,
        version=version,
        priority=priority,
        executors=tuple(executors),
        owners=tuple(sorted(used | {executor.name for executor in executors})),
        registry=registry,
        skip_rule=_skip_rule(manager),
        passes=tuple(_collected(manager, "switchgear_passes", PassPlacement)),
    )


def _registered(manager: pluggy.PluginManager, executors: Sequence[Executor]) -> Registry:
    names = [executor.name for executor in executors]
    if len(set(names)) < len(names):
        raise RegistrationError(f"it brings two executors of one name: {', '.join(sorted(names))}")
    registry = Registry()
    for executor in executors:
        if executor.table is not None:
            executor.table.install_implementations(registry)
            executor.table.install_grad_rules(registry)
    _call(manager, "switchgear_register_implementations", registry=registry)
    _call(manager, "switchgear_register_grad_rules", registry=registry)
    registry.freeze()
    _check_owners(registry, executors)
    return registry


def _check_priorities(*priorities: object) -> None:
    for priority in priorities:
        if not isinstance(priority, (int, float)):
            raise RegistrationError(f"priority {priority!r} is no number; higher ones are asked first, 0 is usual")


def _check_owners(registry: Registry, executors: Sequence[Executor]) -> None:
    if not executors and registry.implementation_owners:
        raise RegistrationError(f"it implements for {min(registry.implementation_owners)}, but brings no executor")
    if not executors and len(registry.grad_rule_owners) > 1:
        raise RegistrationError(f"its rules have several owners: {', '.join(sorted(registry.grad_rule_owners))}")


def _skip_rule(manager: pluggy.PluginManager) -> SkipRule | None:
    caller = getattr(manager.hook, _SKIP_HOOK)
    implementations = caller.get_hookimpls()
    if not implementations:
        return None
    return SkipRule(lambda bound_symbol: caller(bound_symbol=bound_symbol), implementations[0].function)


def _collected(manager: pluggy.PluginManager, hook: str, kind: type[_Item]) -> list[_Item]:
    found: list[_Item] = []
    for result in _call(manager, hook):
        if not isinstance(result, Iterable) or isinstance(result, str):
            raise RegistrationError(f"{hook} returned {result!r}; it returns a sequence of {kind.__name__}")
        for item in result:
            if not isinstance(item, kind):
                raise RegistrationError(f"{hook} returned {item!r} in its sequence, which is no {kind.__name__}")
            found.append(item)
    return found


def _call(manager: pluggy.PluginManager, hook: str, **arguments: Any) -> list[Any]:
    try:
        results: list[Any] = getattr(manager.hook, hook)(**arguments)
    except Exception as error:
        error.add_note(f"raised by {hook}")
        raise
    return results


def _check_hook_names(module: Any) -> None:
    parser = pluggy.PluginManager(PROJECT)
    for name in dir(module):
        options = parser.parse_hookimpl_opts(module, name)
        if options is not None and (options["specname"] or name) not in HOOKS and not options["optionalhook"]:
            raise RegistrationError(f"{name} is no hook{_suggestion(options['specname'] or name)}")
        if options is None and name.startswith("switchgear_") and inspect.isroutine(getattr(module, name)):
            if name not in HOOKS:
                raise RegistrationError(f"{name} is no hook{_suggestion(name)}; switchgear_ is for hooks")
            raise RegistrationError(f"{name} is not marked as a hook; decorate it with @switchgear.hookimpl")


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, HOOKS, n=1)
    return f"; did you mean {close[0]}?" if close else f"; the hooks are {', '.join(HOOKS)}"


def _without_faults(plugins: Sequence[Plugin]) -> tuple[list[Plugin], dict[str, tuple[Status, str]]]:
    faults: dict[str, tuple[Status, str]] = {}
    for plugin in plugins:
        for owner in plugin.owners:
            if owner not in _own_names(plugin):
                faults[plugin.name] = ("failed", _foreign(plugin, owner, plugins))
    sound = [plugin for plugin in plugins if plugin.name not in faults]
    for owner, rivals in _by_owner(sound).items():
        if len(rivals) > 1:
            claims = " and ".join(f"plugin {rival.name} ({rival.distribution})" for rival in rivals)
            error = f"{claims} all bring {owner}; uninstall all but one, or name the others in {DISABLE_VARIABLE}"
            faults.update({rival.name: ("conflict", error) for rival in rivals})
    return [plugin for plugin in sound if plugin.name not in faults], faults


def _own_names(plugin: Plugin) -> set[str]:
    if plugin.executors:
        return {executor.name for executor in plugin.executors}
    return {plugin.name, plugin.distribution}


def _foreign(plugin: Plugin, owner: str, plugins: Sequence[Plugin]) -> str:
    holders = [other.name for other in plugins if other is not plugin and owner in _own_names(other)]
    whose = f"belongs to plugin {holders[0]}" if holders else "belongs to nobody"
    own = ", ".join(sorted(filter(None, _own_names(plugin))))
    return f"it registers under {owner!r}, which {whose}; plugin {plugin.name} registers under its own: {own}"


def _by_owner(plugins: Sequence[Plugin]) -> dict[str, list[Plugin]]:
    found: dict[str, list[Plugin]] = {}
    for plugin in plugins:
        for owner in plugin.owners:
            found.setdefault(owner, []).append(plugin)
    return found


def _reported(status: PluginStatus, faults: Mapping[str, tuple[Status, str]]) -> PluginStatus:
    if status.name not in faults or status.status not in ("loaded", "unavailable"):
        return status
    outcome, error = faults[status.name]
    return replace(status, status=outcome, error=error)


def _assembled(plugins: Sequence[Plugin], report: tuple[PluginStatus, ...]) -> Plugins:
    registry = Registry()
    for plugin in plugins:
        registry.merge(plugin.registry)
    registry.freeze()
    return Plugins(
        registry=registry,
        executors=tuple(sorted(_executors(plugins), key=lambda executor: (-executor.priority, executor.name))),
        plugins=tuple(sorted(plugins, key=lambda plugin: (-plugin.priority, plugin.name))),
        report=report,
    )


def _executors(plugins: Sequence[Plugin]) -> Iterator[Executor]:
    for plugin in plugins:
        yield from plugin.executors


def _distribution(entry: EntryPoint) -> tuple[str, str]:
    distribution = entry.dist
    return ("", "") if distribution is None else (distribution.name, distribution.version)
