"""The contract between Switchgear and its plugins: eight hooks, each optional.

A plugin is a module named by an entry point of the group `switchgear`; the entry point's name is what users type. Mark
each hook with `switchgear.hookimpl`. Importing the module must be cheap and change nothing: tables are declared at
module level, and installed on the registry that the hooks are given. Arguments of hooks only ever grow, and an
implementation may leave out those that it does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import pluggy

from switchgear.capture.handler import Feature
from switchgear.errors import RegistrationError
from switchgear.ir.choice import Choice, Declined
from switchgear.ir.lines import Lines
from switchgear.ir.symbol import BoundSymbol
from switchgear.ir.trace import Trace
from switchgear.who.executor import Executor, FusionExecutor
from switchgear.who.region import Region, RegionChoice
from switchgear.who.registry import Registry

PROJECT = "switchgear"
#: The version of this contract; a plugin's module may say which it is written for: `switchgear_contract = 1`.
CONTRACT = 1

#: Marks a function of a plugin as the implementation of the hook of its name.
hookimpl = pluggy.HookimplMarker(PROJECT)
_hookspec = pluggy.HookspecMarker(PROJECT)

Stage: TypeAlias = Literal[
    "before_grad", "after_grad", "before_claim", "before_fusion", "after_claim"
]


class PassContext(Protocol):
    """What a pass may ask about the call of `jit` that it runs for.

    `executors` are those of the call, in the order asked. `choices` are what was said so far, for `explain`: of the
    kind `pattern`, and owned by who takes a pattern, or by `decomposition` where its parts stay as they are.

    For passes after claiming: `gives_gradients` says that the trace's outputs are gradients, two of which may be one
    tensor. `destined` pairs the positions of outputs with those of inputs that they are but copied into, once the
    trace has run, where nothing else can tell. A pass that has the trace write there itself puts None in the place of
    the output and counts the write in `Trace.written`.
    """

    executors: tuple[Executor, ...]
    choices: list[Choice]
    gives_gradients: bool
    destined: Mapping[int, int]

    @staticmethod
    def hint(number: object) -> object:
        """A number, a symbolic one as it is in the call at hand: for estimates alone."""

    def takes(self, owner: str, candidate: BoundSymbol) -> bool:
        """Whether `owner` takes `candidate`, a call made to stand in the place of its subsymbols.

        Not where an executor asked before it takes the candidate or one of the subsymbols, or where someone else says
        how one of those is differentiated: a rule asked before the owner's, or a skip rule.
        """
        ...

    def offer(self, owner: str, lines: Lines, whole: BoundSymbol, unless: str = "") -> None:
        """Put a composite in the place of its last part, and of the others, if `owner` takes it.

        Not where a reason speaks against it: `unless`, or that of `Lines.seen_elsewhere`.
        """

    def decline(
        self,
        owner: str,
        bound_symbol: BoundSymbol,
        reason: str,
        others: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Have `explain` say why `owner` makes no pattern of a call; `others` are those asked before."""


class RegionContext(Protocol):
    """What `switchgear_choose` may ask about the call of `jit` that it decides for.

    `executors` are all that take part, in the order asked.
    """

    executors: tuple[Executor, ...]

    def label(self, executor: Executor) -> str:
        """An executor's name and version."""
        ...

    def operators(self, region: Region) -> Trace:
        """The region as the executors that fuse nothing run it: who does is its lines' `implementation.owner`."""
        ...

    def code(self, executor: Executor) -> str | None:
        """A digest of an executor's code; None where that is a script's own or a notebook's."""
        ...

    def unlike(self, region: Region, arguments: Sequence[Any], results: Any, expected: Any) -> str:
        """How results for the region's sizes and inputs differ from its operators'; empty if they are near enough.

        The tolerance is the square root of the dtype's precision, of the largest element, and more where terms cancel.
        """
        ...

    def function(self, operators: Trace) -> Callable[..., Any]:
        """What runs such a trace: a function of the region's sizes and inputs."""
        ...

    def compile(
        self, entrants: Sequence[tuple[Region, FusionExecutor]]
    ) -> dict[tuple[Region, FusionExecutor], Callable[..., Any] | Declined]:
        """What candidates make of regions, each compiled once; all at once, for some compile several side by side."""
        ...


#: The owner of a pass that is given to one call.
OF_THE_CALL = "the call"


@dataclass(frozen=True, slots=True)
class PassPlacement:
    """A pass of a plugin and where it runs.

    `before_grad` sees the calls as captured; `after_grad` the joint trace, once for each kind of grad outputs, where
    gradients are wanted. The others see forward and backward, the backward when it is first needed: `before_claim`,
    `before_fusion`, in which each call has who runs it, and `after_claim`, the very end.

    A pass that puts calls of its own in the place of others asks the context who would run them. Once executors have
    claimed, each call has an `implementation`, and what a pass adds has to have one. At the end a call may write to its
    arguments (`written_arguments`), if the memory (`storages`) is the trace's own.
    """

    name: str
    stage: Stage
    run: Callable[[Trace, PassContext], Trace]
    #: The plugin that brings it; known once it is loaded.
    owner: str = ""

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
    a plugin takes part where `executors` names it, and by default after the executors, in the order of (the module's
    `switchgear_priority`, 0 unless set, higher first; the plugin's name).
    """


@_hookspec
def switchgear_passes() -> Sequence[PassPlacement]:  # type: ignore[empty-body]
    """The passes that this plugin adds to the pipeline of calls in which it takes part, by an executor or itself."""


@_hookspec
def switchgear_features() -> Sequence[Feature]:  # type: ignore[empty-body]
    """The features of capture that this plugin adds where it takes part, by an executor or itself.

    They are asked after those of the package itself, each of which `SWITCHGEAR_DISABLE_FEATURES` leaves out by name.
    """


@_hookspec(firstresult=True)
def switchgear_is_constant_for_vjp(bound_symbol: BoundSymbol) -> bool | None:
    """Skip rule: True keeps the forward and takes it out of differentiation; False ends the asking; None is no opinion.

    False cannot make a constant differentiable. Asked of the plugins that take part, in their order.
    """


@_hookspec(firstresult=True)
def switchgear_choose(
    regions: Sequence[Region], context: RegionContext
) -> Sequence[RegionChoice | None] | None:
    """Unless `executors` is None, who runs each region of a program: one answer for each, None where it has no opinion.

    Every region has a candidate or more; all come at once, so that they can be compiled side by side. A region that
    no plugin has an opinion on goes to its first candidate. Asked of the plugins that take part, in their order. Modes
    of the user's may be active, and the calls of a region are not to be run on the user's tensors.
    """


@_hookspec
def switchgear_samples() -> Mapping[Any, Sequence[Any]]:  # type: ignore[empty-body]
    """Calls to test what this plugin registers with: `testing.Sample`s by operator, where PyTorch has none of its own.

    Asked by `switchgear test` alone.
    """


#: The names of the hooks.
HOOKS: tuple[str, ...] = tuple(name for name in vars() if name.startswith("switchgear_"))
