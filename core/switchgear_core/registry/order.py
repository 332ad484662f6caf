"""Order: the participants of a call of `jit`, by its option `executors`.

A list is complete: executors, and packages of rules alone, by name or as objects, the first asked first; others do not
participate. In a list, `...` stands for the default participants not named there, and "-name" leaves out a default
participant. The default participants are the installed executors, by (priority, name), fusion executors before others
of priority 0 or less, and then the packages, by (priority, name). "auto" is `[...]`. None asks executors by (priority,
name) alone, and no plugin chooses the executors of regions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any, Literal, TypeAlias

from switchgear_core.errors import InvalidInput, UnknownExecutor, did_you_mean
from switchgear_core.registry.executor import Executor, FusionExecutor
from switchgear_core.registry.plugin import Plugin
from switchgear_core.registry.plugins import Plugins
from switchgear_core.registry.registry import Table

#: The option `executors` of `jit`.
Executors: TypeAlias = Sequence["str | Executor | EllipsisType"] | Literal["auto"] | None
#: The option `options` of `jit`: an executor's options, by its name.
ExecutorOptions: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Executors and packages of rules, in the order of asking; `named` are the names written by the user.

    `is_measured`: plugins may choose the executors of regions. `options` holds options of executors, by name.
    """

    asked: tuple[Executor | Plugin, ...]
    named: frozenset[str]
    is_measured: bool
    options: ExecutorOptions = field(default_factory=dict)

    @property
    def executors(self) -> tuple[Executor, ...]:
        """The executors among the participants."""
        return tuple([one for one in self.asked if isinstance(one, Executor)])

    def remedy(self, name: str) -> str:
        """Return advice for a user to continue without a participant."""
        return (
            f"leave {name} out of executors"
            if name in self.named
            else f"pass executors=[..., '-{name}']"
        )


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
    found: dict[str, Executor | Plugin | EllipsisType] = {}
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
        if name in found:
            raise InvalidInput(
                f"executor {name!r} is listed twice; list each once, the first is asked first"
            )
        found[name] = one
    if left_out and "..." not in found:
        name = min(left_out)
        raise InvalidInput(
            f"'-{name}' leaves out one of the default ones: write executors=[..., '-{name}']"
        )
    fusing_first = sorted(
        plugins.executors, key=lambda one: not isinstance(one, FusionExecutor) and one.priority <= 0
    )
    default: tuple[Executor | Plugin, ...] = (*fusing_first, *plugins.rule_packages)
    rest = [one for one in default if one.name not in found and one.name not in left_out]
    asked: list[Executor | Plugin] = []
    for one in found.values():
        asked += rest if isinstance(one, EllipsisType) else [one]
    return Order(tuple(asked), frozenset(found) - {"..."}, True)


def configured(asked: Order, plugins: Plugins, options: ExecutorOptions) -> Order:
    """Return the order with options of its executors. Raises `UnknownExecutor` and `InvalidInput` for others."""
    known = {one.name: one for one in asked.asked}
    for name in options:
        if name not in known:
            raise UnknownExecutor(
                f"options: no executor {name!r} takes part in this call{did_you_mean(name, known)} "
                f"(those that do: {', '.join(known)})"
            )
        one = known[name]
        if isinstance(one, Plugin):
            raise InvalidInput(f"options names {name!r}, a package of rules, which has none")
        if one not in plugins.executors:
            raise InvalidInput(
                f"options names {name!r}, which is an object in executors: make it with its options"
            )
        known[name] = _with_options(one, options[name])
    return replace(asked, asked=tuple(known.values()), options=options)


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
    known = {one.name: one for one in _everyone(plugins)}
    if name in known:
        return known[name]
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
        f"no executor is called {name!r}{did_you_mean(name, known)} (installed: {', '.join(known) or 'none'})"
    )


def passed_over(plugins: Plugins, order: Order) -> tuple[str, ...]:
    """Return the names of installed executors and packages of rules that do not participate."""
    asked = {one.name for one in order.asked}
    names = (*(one.name for one in _everyone(plugins)), *plugins.others)
    return tuple([name for name in names if name not in asked])


def _everyone(plugins: Plugins) -> tuple[Executor | Plugin, ...]:
    return (*plugins.executors, *plugins.rule_packages)


def _no_executor(place: int, item: object) -> TypeError:
    remedy = "use a name such as 'torch', or an Executor object"
    if isinstance(item, Table):
        remedy = f"write sg.Executor({item.owner!r}, table=table)"
    elif isinstance(item, type) and issubclass(item, Executor):
        remedy = f"write {item.__name__}(), an object of the class"
    shown = f"a {type(item).__name__}" if isinstance(item, Table) else repr(item)
    return TypeError(f"executors[{place}] is {shown}; {remedy}")
