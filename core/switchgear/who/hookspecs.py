"""The contract between Switchgear and its plugins: seven hooks, each optional.

A plugin is a module named by an entry point of the group `switchgear`; the entry point's name is what users type. Mark
each hook with `switchgear.hookimpl`. Importing the module must be cheap and change nothing: tables are declared at
module level, and installed on the registry that the hooks are given. Arguments of hooks only ever grow, and an
implementation may leave out those that it does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import pluggy

from switchgear.capture.handler import Feature
from switchgear.errors import RegistrationError
from switchgear.ir.symbol import BoundSymbol
from switchgear.ir.trace import Trace
from switchgear.who.executor import Executor
from switchgear.who.region import Region, RegionChoice
from switchgear.who.registry import Registry

if TYPE_CHECKING:
    from switchgear.compile.plugin_passes import PassContext
    from switchgear.fusion.choose import RegionContext

PROJECT = "switchgear"

#: Marks a function of a plugin as the implementation of the hook of its name.
hookimpl = pluggy.HookimplMarker(PROJECT)
_hookspec = pluggy.HookspecMarker(PROJECT)

Stage: TypeAlias = Literal["before_grad", "after_grad", "before_claim", "after_claim"]


@dataclass(frozen=True, slots=True)
class PassPlacement:
    """A pass of a plugin and where it runs: before or after differentiation, before executors claim, or after it.

    A pass that puts calls of its own in the place of others asks the context who would run them. After executors have
    claimed, and regions are found, each call has an `implementation`, and what a pass adds has to have one. A call may
    write to its arguments there (`written_arguments`), if the memory (`storages`) is the trace's own.
    """

    name: str
    stage: Stage
    run: Callable[[Trace, PassContext], Trace]

    def __post_init__(self) -> None:
        stages = get_args(Stage)
        if self.stage not in stages:
            raise RegistrationError(
                f"pass {self.name} is placed at {self.stage!r}; the stages are {', '.join(stages)}"
            )


@_hookspec
def switchgear_executors() -> Sequence[Executor]:  # type: ignore[empty-body]
    """The executors that this plugin brings."""


@_hookspec
def switchgear_register_implementations(registry: Registry) -> None:
    """Install implementations, owned by this plugin's executors: `table.install_implementations(registry)`."""


@_hookspec
def switchgear_register_grad_rules(registry: Registry) -> None:
    """Install grad rules: `table.install_grad_rules(registry)`.

    Their owner is one of this plugin's executors; for a plugin without executors, the plugin or its distribution. Such
    a plugin's rules are asked after those of the call's executors, in the order of (the module's `switchgear_priority`,
    0 unless set, higher first; the plugin's name).
    """


@_hookspec
def switchgear_passes() -> Sequence[PassPlacement]:  # type: ignore[empty-body]
    """The passes that this plugin adds to the pipeline; a plugin with executors adds them when one of these is used."""


@_hookspec
def switchgear_features() -> Sequence[Feature]:  # type: ignore[empty-body]
    """The features of capture that this plugin adds; a plugin with executors adds them when one of these is used.

    They are asked after those of the package itself, each of which `SWITCHGEAR_DISABLE_FEATURES` leaves out by name.
    """


@_hookspec(firstresult=True)
def switchgear_is_constant_for_vjp(bound_symbol: BoundSymbol) -> bool | None:
    """Skip rule: True keeps the forward and takes it out of differentiation; False ends the asking; None is no opinion.

    False cannot make a constant differentiable. Asked of the plugins whose executors the call uses, in their order,
    then of plugins without executors.
    """


@_hookspec(firstresult=True)
def switchgear_choose(
    regions: Sequence[Region], context: RegionContext
) -> Sequence[RegionChoice | None] | None:
    """Under `executors="auto"`, who runs each region of a program: one answer for each, None where it has no opinion.

    Every region has a candidate or more; all come at once, so that they can be compiled side by side. A region that
    no plugin has an opinion on goes to its first candidate. Asked of the plugins whose executors the call uses, in
    their order, then of plugins without executors. Modes of the user's may be active, and the calls of a region are
    not to be run on the user's tensors.
    """


#: The names of the hooks.
HOOKS: tuple[str, ...] = tuple(name for name in vars() if name.startswith("switchgear_"))
