"""Hooks of plugins and parts, each optional.

A plugin is a module named by an entry point of the group `switchgear`; users list the entry point's name. A part is one
of the group `switchgear.parts`: it takes part in every call, and `SWITCHGEAR_DISABLE` leaves it out. Mark each hook
with `switchgear.hookimpl`. The import must be cheap and have no effects: declare tables at module level, and
install them on the registry passed to the hooks. Arguments of hooks are only ever added, and an implementation may omit
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import pluggy

from switchgear_core.errors import RegistrationError
from switchgear_core.ir.choice import Choice, Declined
from switchgear_core.ir.lines import Lines
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.ir.trace import Trace
from switchgear_core.record.handler import Feature
from switchgear_core.registry.executor import Executor, FusionExecutor
from switchgear_core.registry.options import Option
from switchgear_core.registry.region import Region, RegionChoice
from switchgear_core.registry.registry import Registry

PROJECT = "switchgear"
#: The group of entry points of parts, which take part in every call.
PARTS = "switchgear.parts"
#: The distributions that ship together, whose plugins keep their names.
DISTRIBUTIONS = frozenset({PROJECT, "switchgear-core"})
#: The version of this contract; a plugin's module may declare its own: `switchgear_contract = 1`.
CONTRACT = 1

#: Marks a function of a plugin as the implementation of the hook of its name.
hookimpl = pluggy.HookimplMarker(PROJECT)
_hookspec = pluggy.HookspecMarker(PROJECT)

Stage: TypeAlias = Literal[
    "before_grad",
    "after_grad",
    "before_partition",
    "before_claim",
    "before_fusion",
    "after_claim",
]


class PassContext(Protocol):
    """Interface of a pass to its call of `jit`.

    Attributes:
        executors: the executors of the call, in order.
        choices: choices of the kind `pattern` so far, for `explain`. The owner is the pattern's owner, or
            `decomposition` if the calls stay.
        gives_gradients: after claiming: whether outputs are gradients, two of which may be one tensor.
        destined: after claiming: positions of outputs that are only copied into inputs after the run, with positions of
            the inputs. A pass that writes to the input instead replaces the output by None, and counts the write in
            `Trace.writes`.
        count: after `grad` and before the partition: the number of outputs of a joint trace that are the forward's;
            None if the trace has no gradients.
        is_differentiated: before the partition: whether the trace will be differentiated again.
    """

    executors: tuple[Executor, ...]
    choices: list[Choice]
    gives_gradients: bool
    destined: Mapping[int, int]
    count: int | None
    is_differentiated: bool

    def replace(self, replacements: Mapping[str, TensorProxy]) -> None:
        """Note values that a pass before the partition removed, by name, each with the equal value in its place."""

    @staticmethod
    def hint(number: object) -> object:
        """Estimate a symbolic number.

        Args:
            number: a number, symbolic or not.

        Returns:
            Its value in the current call, for estimates only.
        """

    def takes(self, owner: str, candidate: BoundSymbol) -> bool:
        """Check whether an owner would run a call that stands for its subsymbols.

        It would not, if an earlier executor claims the call or a subsymbol. Nor would it, if a subsymbol has a skip
        rule, or a grad rule asked before the owner's.

        Args:
            owner: the name of an executor or a plugin.
            candidate: the call.

        Returns:
            True if the owner would run it.
        """
        ...

    def offer(self, owner: str, lines: Lines, composite: BoundSymbol, unless: str = "") -> None:
        """Replace calls by a composite, if its owner would run it.

        Args:
            owner: the name of an executor or a plugin.
            lines: the lines of the trace.
            composite: the composite; its subsymbols are the replaced calls.
            unless: a reason against it; `Lines.seen_elsewhere` may have another.
        """

    def decline(
        self,
        owner: str,
        bound_symbol: BoundSymbol,
        reason: str,
        others: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Record why an owner replaces no calls here, for `explain`.

        Args:
            owner: the name of an executor or a plugin.
            bound_symbol: the call.
            reason: the reason.
            others: owners asked before, each with its reason.
        """


class RegionContext(Protocol):
    """Interface of `switchgear_choose` to its call of `jit`.

    Attributes:
        executors: the participants, in order.
    """

    executors: tuple[Executor, ...]

    def label(self, executor: Executor) -> str:
        """Name an executor in messages.

        Args:
            executor: the executor.

        Returns:
            Its name and version.
        """
        ...

    def operators(self, region: Region) -> Trace:
        """Claim a region by executors that do not fuse.

        Args:
            region: the region.

        Returns:
            The claimed trace; `implementation.owner` names the executor of each line.
        """
        ...

    def code(self, executor: Executor) -> str | None:
        """Digest the code of an executor, for a key.

        Args:
            executor: the executor.

        Returns:
            The digest; None if a script or a notebook defines the executor.
        """
        ...

    def unlike(self, region: Region, arguments: Sequence[Any], results: Any, expected: Any) -> str:
        """Compare results of a region with those of its operators.

        Args:
            region: the region.
            arguments: its sizes and inputs.
            results: the results of a candidate.
            expected: the results of the operators.

        Returns:
            The difference; empty within the tolerance: the square root of the dtype's precision, relative to the
            largest element, and more where terms cancel.
        """
        ...

    def function(self, operators: Trace) -> Callable[..., Any]:
        """Compile a trace of operators.

        Args:
            operators: a trace, as `operators` returns it.

        Returns:
            A function of the region's sizes and inputs.
        """
        ...

    def compile(
        self, entrants: Sequence[tuple[Region, FusionExecutor]]
    ) -> dict[tuple[Region, FusionExecutor], Callable[..., Any] | Declined]:
        """Compile regions by candidates, each once.

        Args:
            entrants: pairs of a region and an executor. All come at once, because some executors compile in parallel.

        Returns:
            The compiled function, or the reason to decline, for each pair.
        """
        ...


class Job(Protocol):
    """Compilation elsewhere; once it `is_done`, the program is built again, and exchanged between two calls."""

    is_done: bool
    #: When it began, by `time.monotonic`.
    start: float

    def told(self, function: str) -> list[str]:
        """Return messages for the user of a function, once."""


class Building(Protocol):
    """The part of one part in the making of a program.

    Attributes:
        selection: the participants with which the program is built.
    """

    selection: Any

    def job(self) -> Job | None:
        """Return the job after which the program is built again; asked once the regions are compiled."""

    def finished(self, trace: Trace) -> None:
        """Note the trace that runs."""


#: The owner of a pass in the option of one call.
OF_THE_CALL = "the call"


@dataclass(frozen=True, slots=True)
class PassPlacement:
    """Pass of a plugin, and its place.

    `before_grad` sees the calls as captured. `after_grad` sees the joint trace, once for each kind of grad outputs, if
    gradients are needed. `before_partition` sees the same, or a trace without gradients: its passes remove lines whose
    values others have. The other places see forward and backward, the backward when first needed. In `before_fusion`
    each call has its executor, and `after_claim` is the end.

    A pass that replaces calls asks the context for their executor. Once executors have claimed, each call has an
    `implementation`, and a new call needs one. At the end a call may mutate its arguments (`written_arguments`), if the
    memory (`storages`) is the trace's own.

    Args:
        name: the name for users.
        stage: `before_grad`, `after_grad`, `before_partition`, `before_claim`, `before_fusion` or `after_claim`.
        run: a function of the trace and the `PassContext` that returns a trace.
        owner: the plugin; filled in on loading.
    """

    name: str
    stage: Stage
    run: Callable[[Trace, PassContext], Trace]
    #: The plugin of the pass; set on loading.
    owner: str = ""

    def __post_init__(self) -> None:
        stages = get_args(Stage)
        if self.stage not in stages:
            raise RegistrationError(
                f"pass {self.name} is placed at {self.stage!r}; the stages are {', '.join(stages)}"
            )


@_hookspec
def switchgear_executors() -> Sequence[Executor]:  # type: ignore[empty-body]
    """Return the executors of this plugin."""


@_hookspec
def switchgear_register_implementations(registry: Registry) -> None:
    """Install implementations, owned by this plugin's executors: `table.install_implementations(registry)`.

    Args:
        registry: the registry of all plugins.
    """


@_hookspec
def switchgear_register_grad_rules(registry: Registry) -> None:
    """Install grad rules: `table.install_grad_rules(registry)`.

    Their owner is one of this plugin's executors; without executors, the plugin or its distribution. Such a plugin is
    used if `executors` names it, and by default after the executors. The order is by the module's `switchgear_priority`
    (0 unless set, higher first), then by name.

    Args:
        registry: the registry of all plugins.
    """


@_hookspec
def switchgear_passes() -> Sequence[PassPlacement]:  # type: ignore[empty-body]
    """Return the passes of this plugin, for calls in which it or one of its executors participates."""


@_hookspec
def switchgear_features() -> Sequence[Feature]:  # type: ignore[empty-body]
    """Return the features of capture of this plugin, for calls in which it participates.

    They are asked after the package's own. `SWITCHGEAR_DISABLE_FEATURES` disables features by name.
    """


@_hookspec(firstresult=True)
def switchgear_is_constant_for_vjp(bound_symbol: BoundSymbol) -> bool | None:
    """Decide whether a call is excluded from differentiation: a skip rule.

    Args:
        bound_symbol: the call.

    Returns:
        True keeps the forward, without a gradient. False ends the search; it makes no constant differentiable. None
        passes the question to the next plugin, in the order of the list.
    """


@_hookspec(firstresult=True)
def switchgear_choose(
    regions: Sequence[Region], context: RegionContext
) -> Sequence[RegionChoice | None] | None:
    """Choose the executor of each region of a program, unless `executors` is None.

    Each region has a candidate or more. All regions come at once, so that they can be compiled in parallel. Plugins are
    asked in the order of the list. A region without a choice goes to its first candidate. Modes of the user may be
    active; do not run the calls of a region on the user's tensors.

    Args:
        regions: the regions, in order.
        context: the interface to the call of `jit`.

    Returns:
        One choice for each region, None to leave it to the next plugin; or None for all.
    """


@_hookspec
def switchgear_options() -> Sequence[Option]:  # type: ignore[empty-body]
    """Return the options of `jit` that this part implements. For parts only."""


@_hookspec
def switchgear_frontends(selection: Any) -> Sequence[Any]:  # type: ignore[empty-body]
    """Return front ends, each a `switchgear_core.protocols.Frontend`, asked before the shipped one. For parts only.

    Args:
        selection: the participants of the call; `selection.settings` has its options.
    """


@_hookspec(firstresult=True)
def switchgear_runtime(selection: Any) -> Any:
    """Return a `switchgear_core.protocols.Runtime` in place of the shipped one, or None. For parts only.

    Args:
        selection: the participants of the call.
    """


@_hookspec(firstresult=True)
def switchgear_savings(settings: Mapping[str, object]) -> object:
    """Return the `Savings` that chooses the saved tensors of a call, or None. For parts only.

    Args:
        settings: all options of the call by name.
    """


@_hookspec(firstresult=True)
def switchgear_defers(settings: Mapping[str, object], is_measured: bool) -> bool | None:
    """Decide whether regions may be compiled later, or in another process. For parts only.

    Then an executor whose compiled code is found on disk need not be able to run here.

    Args:
        settings: all options of the call by name.
        is_measured: whether a plugin chooses the executors of regions.
    """


@_hookspec(firstresult=True)
def switchgear_build(source: Trace, selection: Any, boxed: bool) -> Building | None:
    """Take part in the making of a program. For parts only.

    Args:
        source: the trace, before executors claim it.
        selection: the participants of the call, as the parts before return them.
        boxed: whether the program takes its inputs as one list: a backward.
    """


@_hookspec(firstresult=True)
def switchgear_split(
    function: Callable[..., object],
    compile_graph: Callable[..., Any],
    dynamic: bool | None,
    call: object,
) -> Any:
    """Return a function that capture refuses as split into graphs, or None. For parts only.

    Args:
        function: the function.
        compile_graph: compiles a graph, given its dynamic dimensions and a name.
        dynamic: True if sizes vary from the first call on.
        call: the positional and keyword arguments of the call.

    Returns:
        A `switchgear_runtime.splitting.Splitting`.
    """


@_hookspec
def switchgear_remarks(selection: Any) -> Iterable[str]:  # type: ignore[empty-body]
    """Return lines on a call for `explain`. For parts only.

    Args:
        selection: the participants of the call.
    """


@_hookspec
def switchgear_samples() -> Mapping[Any, Sequence[Any]]:  # type: ignore[empty-body]
    """Return samples for tests: `testing.Sample`s by operator, for operators without samples of PyTorch.

    Called by `switchgear test` only.
    """


#: The names of the hooks.
HOOKS: tuple[str, ...] = tuple(name for name in vars() if name.startswith("switchgear_"))
#: Hooks of executors and rules, which a list of executors chooses among; a part has none of these.
CHOSEN = (
    "switchgear_executors",
    "switchgear_register_implementations",
    "switchgear_register_grad_rules",
    "switchgear_is_constant_for_vjp",
    "switchgear_choose",
)
#: Hooks that parts alone are asked.
_OF_BOTH = ("switchgear_passes", "switchgear_features", "switchgear_samples")
OF_PARTS = tuple([name for name in HOOKS if name not in (*CHOSEN, *_OF_BOTH)])
