"""Discovery: the installed plugins, each loaded separately, and a report of the outcomes."""

from __future__ import annotations

import functools
import itertools
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeAlias, TypeVar

from switchgear_core.errors import warn
from switchgear_core.patches import Lock
from switchgear_core.record.attempts import undoing
from switchgear_core.record.handler import left_out
from switchgear_core.registry.executor import Executor, reason_limited, reason_unavailable
from switchgear_core.registry.hookspecs import DISTRIBUTIONS, PARTS, PROJECT
from switchgear_core.registry.isolation import Import, isolated, uncaptured
from switchgear_core.registry.plugin import (
    DISABLE_VARIABLE,
    LOG,
    Plugin,
    PluginStatus,
    Status,
    distribution_of,
    label_of,
    load_one,
)
from switchgear_core.registry.registry import Registry

#: The status of a faulty plugin, and the reason.
Fault: TypeAlias = tuple[Status, str]
LOADING = Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Plugins:
    """Installed plugins: a frozen registry, the executors and the plugins, both in total order.

    `statuses` makes the report by asking every executor whether it can run here, which may start a compiler. `others`
    are installed, but not imported for this call.
    """

    registry: Registry
    executors: tuple[Executor, ...]
    plugins: tuple[Plugin, ...]
    statuses: Callable[[], tuple[PluginStatus, ...]]
    others: tuple[str, ...] = ()

    @property
    def report(self) -> tuple[PluginStatus, ...]:
        """The outcome of loading each plugin."""
        return self.statuses()

    @property
    def rule_packages(self) -> tuple[Plugin, ...]:
        """The plugins without executors, by (priority, name)."""
        return tuple(plugin for plugin in self.plugins if not plugin.executors)

    @property
    def plugin_of(self) -> Mapping[str, Plugin]:
        """The plugin of each executor, by the executor's name."""
        return {executor.name: plugin for plugin in self.plugins for executor in plugin.executors}


_Loaded = TypeVar("_Loaded")


@dataclass(slots=True, eq=False)
class Candidate(Generic[_Loaded]):
    """An entry point, and the outcome of loading its plugin; `fault` is the reason for its absence."""

    entry: EntryPoint
    loader: Callable[[EntryPoint], _Loaded]
    fault: Fault | None = None
    plugin: _Loaded | None = None
    imported: Import = field(default_factory=Import)
    traceback: str = ""
    is_loaded: bool = False
    is_told: bool = False

    @property
    def name(self) -> str:
        """The name of the entry point."""
        return self.entry.name

    @property
    def is_own(self) -> bool:
        """Whether the plugin ships with Switchgear."""
        return distribution_of(self.entry)[0] in DISTRIBUTIONS

    @property
    def label(self) -> str:
        """The name and version, for messages."""
        return label_of(self.entry)

    def load(self) -> None:
        """Import the plugin, unless imported already, or ruled out."""
        if self.is_loaded or self.fault is not None:
            return
        self.is_loaded = True
        # attributes a crash or a hang of the import to the plugin
        LOG.info("importing plugin %s (%s)", self.label, self.entry.value)
        try:
            with isolated() as self.imported:
                self.plugin = self.loader(self.entry)
        except (Exception, SystemExit) as error:
            self.traceback = "".join(traceback.format_exception(error))
            notes = getattr(error, "__notes__", ())
            self.fault = "failed", "; ".join([f"{type(error).__name__}: {error}", *notes])

    def tell(self, fault: Fault | None) -> None:
        """Warn once about its faults."""
        if self.is_told:
            return
        self.is_told = True
        if self.imported.changed:
            changed = ", ".join(self.imported.changed)
            message = (
                f"plugin {self.label} changed {changed} when it was imported; that was put back"
            )
            warn(message)
        if fault is not None and fault[0] in ("failed", "conflict"):
            message = f"plugin {self.label} is not used ({fault[0]}): {fault[1]}"
            warn(message)


def candidates_of(
    entries: Iterable[EntryPoint], loader: Callable[[EntryPoint], _Loaded]
) -> list[Candidate[_Loaded]]:
    """Return a candidate for each entry point, in an order of their own; refused ones have their fault."""
    ordered = sorted(entries, key=lambda entry: (entry.name, *distribution_of(entry), entry.value))
    candidates = [Candidate(entry, loader) for entry in ordered]
    _refuse(candidates)
    return candidates


class Discovery:
    """Entry points of the group `switchgear`, each imported when it may participate."""

    def __init__(self, entries: Iterable[EntryPoint]) -> None:
        self._candidates = candidates_of(entries, load_one)
        self._assembled: dict[tuple[Candidate[Plugin], ...], Plugins] = {}

    @property
    def untried(self) -> list[EntryPoint]:
        """The entry points that may be imported, and were not yet."""
        return [c.entry for c in self._candidates if not c.is_loaded and c.fault is None]

    def rule_out(self, reasons: Mapping[EntryPoint, str]) -> None:
        """Rule out entry points before their import, for the given reasons."""
        for item in self._candidates:
            if item.entry in reasons:
                item.fault = "failed", reasons[item.entry]

    def plugins(self, names: object = None, tables: Iterable[object] = ()) -> Plugins:
        """Return the plugins that may participate; `names` is the option `executors` of `jit`. See `installed`."""
        candidates = tuple(self._chosen(names, tables))
        if candidates not in self._assembled:
            self._assembled[candidates] = self._assemble(candidates)
        return self._assembled[candidates]

    def _chosen(self, requested: object, tables: Iterable[object]) -> Iterable[Candidate[Plugin]]:
        if not isinstance(requested, Sequence) or isinstance(requested, str) or ... in requested:
            return self._candidates
        items = (*requested, *tables)
        names = {item for item in items if isinstance(item, str)}
        # an object of the class `Executor` itself, without a table, stands for a plugin's registrations under its name
        objects = [item for item in items if isinstance(item, Executor) and hasattr(item, "name")]
        names.update(item.name for item in objects if type(item) is Executor and item.table is None)
        if not names <= {item.name for item in self._candidates}:
            return self._candidates
        names.update(item.name for item in objects)
        packages = {type(item).__module__.partition(".")[0] for item in objects} - {PROJECT}
        return [
            item
            for item in self._candidates
            if item.name in names or item.entry.module.partition(".")[0] in packages
        ]

    def _assemble(self, candidates: Sequence[Candidate[Plugin]]) -> Plugins:
        for item in candidates:
            item.load()
        faults = {item: item.fault for item in candidates}
        for check in (_foreign_owners, self._others_names, _rival_owners):
            homes = {
                item.plugin: item for item in candidates if item.plugin and faults[item] is None
            }
            faults.update((homes[plugin], fault) for plugin, fault in check([*homes]).items())
        for item in candidates:
            item.tell(faults[item])

        @functools.cache
        def statuses() -> tuple[PluginStatus, ...]:
            return tuple(
                replace(
                    _status(item.entry, item.plugin, faults[item]),
                    notes=tuple(item.imported.notes),
                    traceback=item.traceback,
                )
                for item in candidates
            )

        sound = [item.plugin for item in candidates if item.plugin and faults[item] is None]
        others = dict.fromkeys(item.name for item in self._candidates if item not in candidates)
        return _assembled(sound, statuses, tuple(others))

    def _others_names(self, plugins: Sequence[Plugin]) -> dict[Plugin, Fault]:
        """Return faults of plugins with the name of another plugin, imported or not; Switchgear's own come first."""
        faults: dict[Plugin, Fault] = {}
        names = {
            item.name: item
            for item in sorted(self._candidates, key=lambda item: item.is_own)
            if item.is_own or item.fault is None or item.fault[0] != "disabled"
        }
        for item in self._candidates:
            if item.plugin is None or item.plugin not in plugins or item.is_own:
                continue
            for owner in sorted(item.plugin.owners & names.keys() - {item.name}):
                other = names[owner]
                whose = "Switchgear's own" if other.is_own else f"plugin {other.label}'s"
                error = (
                    f"it brings {owner!r}, a name that is {whose}; its author has to choose another"
                )
                faults[item.plugin] = "conflict", error
        return faults


@undoing
def installed(names: object = None, tables: Iterable[object] = ()) -> Plugins:
    """Return the plugins of this process that may participate; `names` is `executors`, `tables` is `grad_rules`.

    A list without `...` imports only the named plugins; if a name belongs to no entry point, such as a plugin's second
    executor, all are imported, to find it. Any other option imports all installed plugins.
    """
    with LOADING, uncaptured():  # two threads would both load the plugins
        return loaded_once().plugins(names, tables)


@functools.cache
def loaded_once() -> Discovery:
    """Return the installed plugins, looked up once."""
    return Discovery(entry_points(group=PROJECT))


def load(candidates: Iterable[EntryPoint]) -> Plugins:
    """Load the plugins behind `candidates`.

    The order of `candidates` and of imports does not matter. A plugin that cannot be loaded leaves only a
    `PluginWarning` and its entry in the report.
    """
    return Discovery(candidates).plugins()


def _refuse(candidates: Sequence[Candidate[Any]]) -> None:
    """Refuse plugins before import: disabled plugins, and plugins of one name unless one ships with Switchgear."""
    # the variable names plugins and parts
    others = (entry.name for group in (PROJECT, PARTS) for entry in entry_points(group=group))
    names = itertools.chain([item.name for item in candidates], others)
    disabled = left_out(DISABLE_VARIABLE, names)
    for item in candidates:
        rivals = [other for other in candidates if other.name == item.name]
        if item.name in disabled:
            item.fault = "disabled", f"named in {DISABLE_VARIABLE}"
        elif any(rival.is_own for rival in rivals) and not item.is_own:
            error = f"{item.name!r} is a name of Switchgear's own; its author has to choose another"
            item.fault = "conflict", error
        elif not item.is_own and len(rivals) > 1:
            claims = " and ".join(
                f"{distribution_of(rival.entry)[0] or 'no distribution'} ({rival.entry.value})"
                for rival in rivals
            )
            error = f"{claims} all call their plugin {item.name}; uninstall all but one"
            item.fault = "conflict", error


def _status(entry: EntryPoint, plugin: Plugin | None, fault: Fault | None) -> PluginStatus:
    executors = plugin.executors if plugin else ()
    reasons = {executor.name: reason_unavailable(executor) for executor in executors}
    if fault is None and reasons and None not in reasons.values():
        fault = ("unavailable", "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
    limits = [reason_limited(executor) for executor in executors if reasons[executor.name] is None]
    status = fault or ("loaded", "")
    return PluginStatus(
        entry.name,
        *distribution_of(entry),
        *status,
        tuple(reasons),
        "; ".join(filter(None, limits)),
    )


def _foreign_owners(plugins: Sequence[Plugin]) -> dict[Plugin, Fault]:
    faults: dict[Plugin, Fault] = {}
    for plugin in plugins:
        for owner in sorted(plugin.owners - plugin.own_names):
            holders = [other.name for other in plugins if owner in other.own_names]
            whose = f"belongs to plugin {holders[0]}" if holders else "belongs to nobody"
            hint = f"plugin {plugin.name} registers under its own: {', '.join(sorted(filter(None, plugin.own_names)))}"
            faults[plugin] = ("failed", f"it registers under {owner!r}, which {whose}; {hint}")
    return faults


def _rival_owners(plugins: Sequence[Plugin]) -> dict[Plugin, Fault]:
    faults: dict[Plugin, Fault] = {}
    for owner in sorted({owner for plugin in plugins for owner in plugin.owners}):
        rivals = [plugin for plugin in plugins if owner in plugin.owners]
        if len(rivals) > 1:
            claims = " and ".join(f"plugin {rival.name} ({rival.distribution})" for rival in rivals)
            error = f"{claims} all bring {owner}; uninstall all but one, or name the others in {DISABLE_VARIABLE}"
            faults |= dict.fromkeys(rivals, ("conflict", error))
    return faults


def _assembled(
    plugins: Sequence[Plugin],
    statuses: Callable[[], tuple[PluginStatus, ...]],
    others: tuple[str, ...],
) -> Plugins:
    registry = Registry()
    for plugin in plugins:
        registry.merge(plugin.registry)
    registry.freeze()
    executors = [executor for plugin in plugins for executor in plugin.executors]
    executors.sort(key=lambda executor: (-executor.priority, executor.name))
    ranked = sorted(plugins, key=lambda plugin: (-plugin.priority, plugin.name))
    return Plugins(registry, tuple(executors), tuple(ranked), statuses, others)
