"""Discovery: the installed plugins, each loaded alone, and a report of how that went."""

from __future__ import annotations

import difflib
import functools
import inspect
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeAlias, TypeVar

import pluggy

from switchgear.capture.handler import Feature, left_out
from switchgear.errors import PluginWarning, RegistrationError
from switchgear.ir.symbol import BoundSymbol
from switchgear.who import hookspecs
from switchgear.who.executor import Executor, reason_limited, reason_unavailable
from switchgear.who.hookspecs import CONTRACT, HOOKS, PROJECT, PassPlacement
from switchgear.who.isolation import Import, isolated
from switchgear.who.registry import Registry

#: Names of plugins, separated by commas, that are refused before they are imported.
DISABLE_VARIABLE = "SWITCHGEAR_DISABLE"

Status: TypeAlias = Literal["loaded", "disabled", "unavailable", "conflict", "failed"]
#: What became of a plugin that is not as it should be, and why.
Fault: TypeAlias = tuple[Status, str]
_Item = TypeVar("_Item")
_LOADING = threading.RLock()


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """One line of the report: how loading a plugin went, and why not better.

    `limits` is what does not work here, `notes` what its import did besides, `traceback` that of what it raised.
    """

    name: str
    distribution: str
    version: str
    status: Status
    error: str = ""
    executors: tuple[str, ...] = ()
    limits: str = ""
    notes: tuple[str, ...] = ()
    traceback: str = ""

    @property
    def label(self) -> str:
        """The plugin's name and version, for messages."""
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class SkipRule:
    """A `switchgear_is_constant_for_vjp`; `source` is the function that the plugin wrote, for messages."""

    fn: Callable[[BoundSymbol], bool | None]
    source: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Chooser:
    """A `switchgear_choose`; `source` is the function that the plugin wrote, `label` and `remedy` are for messages."""

    fn: Callable[[Any, Any], Any]
    source: Callable[..., Any]
    label: str
    remedy: str


@dataclass(frozen=True, slots=True, eq=False)
class Plugin:
    """A loaded plugin; `priority` ranks a package of rules, `samples` gives those of `switchgear.testing`."""

    name: str
    distribution: str
    version: str
    priority: int
    executors: tuple[Executor, ...]
    registry: Registry
    skip_rule: SkipRule | None
    passes: tuple[PassPlacement, ...]
    chooser: Chooser | None
    features: tuple[Feature, ...]
    samples: Callable[[], list[Mapping[Any, Sequence[Any]]]]

    @property
    def label(self) -> str:
        """The plugin's name and version, for messages."""
        return f"{self.name} {self.version}".strip()

    @property
    def owners(self) -> frozenset[str]:
        """The names that it takes: its executors' and those it registered under."""
        names = frozenset(executor.name for executor in self.executors)
        return names | self.registry.implementation_owners | self.registry.grad_rule_owners

    @property
    def own_names(self) -> set[str]:
        """The names it may register under: its executors'; for a package of rules, its own and its distribution's."""
        return {executor.name for executor in self.executors} or {self.name, self.distribution}


@dataclass(frozen=True, slots=True, eq=False)
class Plugins:
    """What is installed: a frozen registry, the executors and the plugins, both in total order.

    `statuses` makes the report: it asks every executor whether it can run here, which may take a compiler's time.
    """

    registry: Registry
    executors: tuple[Executor, ...]
    plugins: tuple[Plugin, ...]
    statuses: Callable[[], tuple[PluginStatus, ...]]

    @property
    def report(self) -> tuple[PluginStatus, ...]:
        """How loading each plugin went."""
        return self.statuses()

    @property
    def rule_packages(self) -> tuple[Plugin, ...]:
        """The plugins without executors, by (priority, name)."""
        return tuple(plugin for plugin in self.plugins if not plugin.executors)

    @property
    def plugin_of(self) -> Mapping[str, Plugin]:
        """The plugin that brings each executor, by the executor's name."""
        return {executor.name: plugin for plugin in self.plugins for executor in plugin.executors}


def installed() -> Plugins:
    """The plugins of this process, loaded once."""
    with _LOADING:  # of two threads, both would
        return loaded_once()


@functools.cache
def loaded_once() -> Plugins:
    """The same, where nobody else may be loading them."""
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
    entries = sorted(chosen, key=lambda entry: (entry.name, *_distribution(entry), entry.value))
    faults = _refused(entries)
    loaded: dict[str, Plugin] = {}
    imports: dict[str, Import] = {}
    tracebacks: dict[str, str] = {}
    for entry in entries:
        if entry.name not in faults:
            try:
                with isolated() as imports[entry.name]:
                    loaded[entry.name] = _load_one(entry)
            except (Exception, SystemExit) as error:
                tracebacks[entry.name] = "".join(traceback.format_exception(error))
                notes = getattr(error, "__notes__", ())
                faults[entry.name] = (
                    "failed",
                    "; ".join([f"{type(error).__name__}: {error}", *notes]),
                )
    faults |= _foreign_owners(list(loaded.values()))
    faults |= _rival_owners([plugin for plugin in loaded.values() if plugin.name not in faults])
    for entry in entries:
        label = f"{entry.name} {_distribution(entry)[1]}".strip()
        if entry.name in imports and imports[entry.name].changed:
            changed = ", ".join(imports[entry.name].changed)
            message = f"plugin {label} changed {changed} when it was imported; that was put back"
            warnings.warn(message, PluginWarning, stacklevel=3)
        fault = faults.get(entry.name)
        if fault is not None and fault[0] in ("failed", "conflict"):
            message = f"plugin {label} is not used ({fault[0]}): {fault[1]}"
            warnings.warn(message, PluginWarning, stacklevel=3)

    @functools.cache
    def statuses() -> tuple[PluginStatus, ...]:
        return tuple(
            replace(
                _status(entry, loaded.get(entry.name), faults.get(entry.name)),
                notes=tuple(imports.get(entry.name, Import()).notes),
                traceback=tracebacks.get(entry.name, ""),
            )
            for entry in entries
        )

    return _assembled([plugin for plugin in loaded.values() if plugin.name not in faults], statuses)


def _refused(entries: Sequence[EntryPoint]) -> dict[str, Fault]:
    """Who is not even imported."""
    disabled = left_out(DISABLE_VARIABLE, [entry.name for entry in entries])
    faults: dict[str, Fault] = {}
    for name in {entry.name for entry in entries}:
        rivals = [entry for entry in entries if entry.name == name]
        if name in disabled:
            faults[name] = ("disabled", f"named in {DISABLE_VARIABLE}")
        elif len(rivals) > 1:
            claims = " and ".join(
                f"{_distribution(rival)[0] or 'no distribution'} ({rival.value})"
                for rival in rivals
            )
            faults[name] = (
                "conflict",
                f"{claims} all call their plugin {name}; uninstall all but one",
            )
    return faults


def _status(entry: EntryPoint, plugin: Plugin | None, fault: Fault | None) -> PluginStatus:
    executors = plugin.executors if plugin else ()
    reasons = {executor.name: reason_unavailable(executor) for executor in executors}
    if fault is None and reasons and None not in reasons.values():
        fault = ("unavailable", "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
    limits = [reason_limited(executor) for executor in executors if reasons[executor.name] is None]
    status = fault or ("loaded", "")
    return PluginStatus(
        entry.name, *_distribution(entry), *status, tuple(reasons), "; ".join(filter(None, limits))
    )


def _load_one(entry: EntryPoint) -> Plugin:
    module = entry.load()
    contract = getattr(module, "switchgear_contract", CONTRACT)
    if contract != CONTRACT:
        raise RegistrationError(
            f"it is written for contract {contract!r}, and this Switchgear has {CONTRACT}; install versions that fit"
        )
    manager = pluggy.PluginManager(PROJECT)
    _check_hook_names(manager, module)
    manager.add_hookspecs(hookspecs)
    manager.register(module, entry.name)
    executors = _collected(manager, "switchgear_executors", Executor)
    priority = getattr(module, "switchgear_priority", 0)
    for number in (priority, *(executor.priority for executor in executors)):
        if not isinstance(number, (int, float)):
            raise RegistrationError(
                f"priority {number!r} is no number; higher ones are asked first, 0 is usual"
            )
    registry = _registered(manager, executors)
    placements = _collected(manager, "switchgear_passes", PassPlacement)
    label = f"{entry.name} {_distribution(entry)[1]}".strip()
    passes = tuple(replace(placement, owner=label) for placement in placements)
    features = _collected(manager, "switchgear_features", Feature)
    skip_rule, chooser = _skip_rule(manager), _chooser(manager, entry.name, label)
    brought = executors, registry.grad_rule_owners, skip_rule, passes, chooser, features
    if not any(brought):
        raise RegistrationError(
            f"it brings nothing; its module has functions by these names, marked by sg.hookimpl: {', '.join(HOOKS)}"
        )
    who = entry.name, *_distribution(entry), priority
    samples = functools.partial(_call, manager, "switchgear_samples")
    return Plugin(*who, executors, registry, skip_rule, passes, chooser, features, samples)


def _registered(manager: pluggy.PluginManager, executors: Sequence[Executor]) -> Registry:
    names = {executor.name for executor in executors}
    if len(names) < len(executors):
        raise RegistrationError(f"it brings two executors of one name: {', '.join(sorted(names))}")
    registry = Registry()
    for executor in executors:
        if executor.table is not None:
            executor.table.install_implementations(registry)
            executor.table.install_grad_rules(registry)
    _call(manager, "switchgear_register_implementations", registry=registry)
    _call(manager, "switchgear_register_grad_rules", registry=registry)
    registry.freeze()
    if not executors and registry.implementation_owners:
        raise RegistrationError(
            f"it implements for {min(registry.implementation_owners)}, but brings no executor"
        )
    if not executors and len(registry.grad_rule_owners) > 1:
        raise RegistrationError(
            f"its rules have several owners: {', '.join(sorted(registry.grad_rule_owners))}"
        )
    return registry


def _skip_rule(manager: pluggy.PluginManager) -> SkipRule | None:
    caller = manager.hook.switchgear_is_constant_for_vjp
    written = [implementation.function for implementation in caller.get_hookimpls()]
    return (
        SkipRule(lambda bound_symbol: caller(bound_symbol=bound_symbol), written[0])
        if written
        else None
    )


def _chooser(manager: pluggy.PluginManager, plugin: str, label: str) -> Chooser | None:
    caller = manager.hook.switchgear_choose
    written = [implementation.function for implementation in caller.get_hookimpls()]
    if not written:
        return None
    remedy = f"disable it with {DISABLE_VARIABLE}={plugin}"
    return Chooser(
        lambda regions, context: caller(regions=regions, context=context),
        written[0],
        label,
        remedy,
    )


def _collected(manager: pluggy.PluginManager, hook: str, kind: type[_Item]) -> tuple[_Item, ...]:
    found: list[_Item] = []
    for result in _call(manager, hook):
        if not isinstance(result, Iterable) or isinstance(result, str):
            raise RegistrationError(
                f"{hook} returned {result!r}; it returns a sequence of {kind.__name__}"
            )
        for item in result:
            if not isinstance(item, kind):
                raise RegistrationError(
                    f"{hook} returned {item!r} in its sequence, which is no {kind.__name__}"
                )
            found.append(item)
    return tuple(found)


def _call(manager: pluggy.PluginManager, hook: str, **arguments: object) -> list[Any]:
    try:
        return list(getattr(manager.hook, hook)(**arguments))
    except Exception as error:
        error.add_note(f"raised by {hook}")
        raise


def _check_hook_names(manager: pluggy.PluginManager, module: object) -> None:
    for name in dir(module):
        options = manager.parse_hookimpl_opts(module, name)
        if options is not None:
            hook = options["specname"] or name
            if hook not in HOOKS and not options["optionalhook"]:
                raise RegistrationError(f"{name} is no hook{_suggestion(hook)}")
        elif name.startswith("switchgear_") and inspect.isroutine(getattr(module, name)):
            if name not in HOOKS:
                raise RegistrationError(
                    f"{name} is no hook{_suggestion(name)}; switchgear_ is for hooks"
                )
            raise RegistrationError(
                f"{name} is not marked as a hook; decorate it with @switchgear.hookimpl"
            )


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, HOOKS, n=1)
    return f"; did you mean {close[0]}?" if close else f"; the hooks are {', '.join(HOOKS)}"


def _foreign_owners(plugins: Sequence[Plugin]) -> dict[str, Fault]:
    faults: dict[str, Fault] = {}
    for plugin in plugins:
        for owner in sorted(plugin.owners - plugin.own_names):
            holders = [other.name for other in plugins if owner in other.own_names]
            whose = f"belongs to plugin {holders[0]}" if holders else "belongs to nobody"
            own = f"plugin {plugin.name} registers under its own: {', '.join(sorted(filter(None, plugin.own_names)))}"
            faults[plugin.name] = ("failed", f"it registers under {owner!r}, which {whose}; {own}")
    return faults


def _rival_owners(plugins: Sequence[Plugin]) -> dict[str, Fault]:
    faults: dict[str, Fault] = {}
    for owner in sorted({owner for plugin in plugins for owner in plugin.owners}):
        rivals = [plugin for plugin in plugins if owner in plugin.owners]
        if len(rivals) > 1:
            claims = " and ".join(f"plugin {rival.name} ({rival.distribution})" for rival in rivals)
            error = f"{claims} all bring {owner}; uninstall all but one, or name the others in {DISABLE_VARIABLE}"
            faults |= {rival.name: ("conflict", error) for rival in rivals}
    return faults


def _assembled(
    plugins: Sequence[Plugin], statuses: Callable[[], tuple[PluginStatus, ...]]
) -> Plugins:
    registry = Registry()
    for plugin in plugins:
        registry.merge(plugin.registry)
    registry.freeze()
    executors = [executor for plugin in plugins for executor in plugin.executors]
    executors.sort(key=lambda executor: (-executor.priority, executor.name))
    ranked = sorted(plugins, key=lambda plugin: (-plugin.priority, plugin.name))
    return Plugins(registry, tuple(executors), tuple(ranked), statuses)


def _distribution(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist else ("", "")
