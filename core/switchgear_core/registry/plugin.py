"""One plugin: the contents of the module named by an entry point, and the outcome of loading it."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import Distribution, EntryPoint
from typing import Any, Literal, TypeAlias, TypeVar

import pluggy

from switchgear_core.errors import RegistrationError, did_you_mean
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.record.handler import Feature
from switchgear_core.registry import hookspecs
from switchgear_core.registry.executor import Executor
from switchgear_core.registry.hookspecs import CONTRACT, HOOKS, OF_PARTS, PROJECT, PassPlacement
from switchgear_core.registry.registry import Registry

LOG = logging.getLogger("switchgear.plugins")
#: Environment variable with names of plugins to refuse before import, separated by commas.
DISABLE_VARIABLE = "SWITCHGEAR_DISABLE"

Status: TypeAlias = Literal["loaded", "disabled", "unavailable", "conflict", "failed"]
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """One line of the report: the outcome of loading a plugin, with the reason for a failure.

    `limits` are restrictions here, `notes` side effects of the import, `traceback` belongs to an exception.
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

    def __str__(self) -> str:
        executors = f", executors: {', '.join(self.executors)}" if self.executors else ""
        return "; ".join(
            filter(None, [f"{self.label}: {self.status}{executors}", self.limits, self.error])
        )


@dataclass(frozen=True, slots=True)
class SkipRule:
    """A `switchgear_is_constant_for_vjp`; `source` is the plugin's own function, for messages."""

    fn: Callable[[BoundSymbol], bool | None]
    source: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Chooser:
    """A `switchgear_choose`; `source` is the plugin's own function, `label` and `remedy` are for messages."""

    fn: Callable[[Any, Any], Any]
    source: Callable[..., Any]
    label: str
    remedy: str


@dataclass(frozen=True, slots=True, eq=False)
class Plugin:
    """A loaded plugin; `priority` ranks a package of rules, `samples` returns samples for `switchgear.testing`."""

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
        """The names in use: of its executors, and of the owners of its registrations."""
        names = frozenset(executor.name for executor in self.executors)
        return names | self.registry.implementation_owners | self.registry.grad_rule_owners

    @property
    def own_names(self) -> set[str]:
        """The permitted owners of registrations: its executors; without executors, the plugin or its distribution."""
        return {executor.name for executor in self.executors} or {self.name, self.distribution}


def load_one(entry: EntryPoint) -> Plugin:
    """Load the module of an entry point, and ask its hooks."""
    module = entry.load()
    manager = manager_of(module, entry.name, OF_PARTS, hookspecs.PARTS)
    executors = collected(manager, "switchgear_executors", Executor)
    priority = getattr(module, "switchgear_priority", 0)
    check_priorities(priority, *(executor.priority for executor in executors))
    registry = _registered(manager, executors)
    label = label_of(entry)
    passes = passes_of(manager, label)
    features = collected(manager, "switchgear_features", Feature)
    skip_rule, chooser = _skip_rule(manager), _chooser(manager, entry.name, label)
    brought = executors, registry.grad_rule_owners, skip_rule, passes, chooser, features
    if not any(brought):
        names = ", ".join([hook for hook in HOOKS if hook not in OF_PARTS])
        raise RegistrationError(
            f"it brings nothing; its module has functions by these names, marked by sg.hookimpl: {names}"
        )
    identity = entry.name, *distribution_of(entry), priority
    samples = functools.partial(_call, manager, "switchgear_samples")
    return Plugin(*identity, executors, registry, skip_rule, passes, chooser, features, samples)


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
    functions = [implementation.function for implementation in caller.get_hookimpls()]
    return (
        SkipRule(lambda bound_symbol: caller(bound_symbol=bound_symbol), functions[0])
        if functions
        else None
    )


def _chooser(manager: pluggy.PluginManager, plugin: str, label: str) -> Chooser | None:
    caller = manager.hook.switchgear_choose
    functions = [implementation.function for implementation in caller.get_hookimpls()]
    if not functions:
        return None
    remedy = f"disable it with {DISABLE_VARIABLE}={plugin}"
    return Chooser(
        lambda regions, context: caller(regions=regions, context=context),
        functions[0],
        label,
        remedy,
    )


def collected(manager: pluggy.PluginManager, hook: str, kind: type[_Item]) -> tuple[_Item, ...]:
    """Return the items of a hook's sequences; `RegistrationError` for others."""
    items: list[_Item] = []
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
            items.append(item)
    return tuple(items)


def _call(manager: pluggy.PluginManager, hook: str, **arguments: object) -> list[Any]:
    try:
        return list(getattr(manager.hook, hook)(**arguments))
    except Exception as error:
        error.add_note(f"raised by {hook}")
        raise


def check_priorities(*priorities: object) -> None:
    """Raise `RegistrationError` for a priority that is no number."""
    for priority in priorities:
        if not isinstance(priority, (int, float)):
            raise RegistrationError(
                f"priority {priority!r} is no number; higher ones are asked first, 0 is usual"
            )


def passes_of(manager: pluggy.PluginManager, label: str) -> tuple[PassPlacement, ...]:
    """Return the passes of a module, owned by `label`."""
    placements = collected(manager, "switchgear_passes", PassPlacement)
    return tuple([replace(placement, owner=label) for placement in placements])


def manager_of(
    module: object, name: str, refused: Iterable[str], group: str
) -> pluggy.PluginManager:
    """Return a manager with the hooks of a module.

    Raises:
        RegistrationError: the module is for another contract, a function is no hook, or a hook is one of `refused`,
            which only modules in `group` are asked.
    """
    contract = getattr(module, "switchgear_contract", CONTRACT)
    if contract != CONTRACT:
        raise RegistrationError(
            f"it is written for contract {contract!r}, and this Switchgear has {CONTRACT}; install versions that fit"
        )
    manager = pluggy.PluginManager(PROJECT)
    _check_hook_names(manager, module)
    manager.add_hookspecs(hookspecs)
    manager.register(module, name)
    for hook in refused:
        if getattr(manager.hook, hook).get_hookimpls():
            raise RegistrationError(
                f"{name} implements {hook}, asked in the entry-point group {group!r} alone; register it there"
            )
    return manager


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
    return did_you_mean(name, HOOKS) or f"; the hooks are {', '.join(HOOKS)}"


def distribution_of(entry: EntryPoint) -> tuple[str, str]:
    """Return the name and version of an entry point's distribution, empty if there is none."""
    return _identity(entry.dist) if entry.dist else ("", "")


@functools.lru_cache(maxsize=256)  # each reading parses a file
def _identity(distribution: Distribution) -> tuple[str, str]:
    return distribution.name, distribution.version


def label_of(entry: EntryPoint) -> str:
    """Return the name and version of an entry point's plugin, for messages."""
    return f"{entry.name} {distribution_of(entry)[1]}".strip()
