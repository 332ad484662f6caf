"""The pipeline: the order of the passes over a captured trace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from switchgear_core.grad.differentiate import Joint, differentiate
from switchgear_core.grad.hidden_writes import refuse_hidden_writes
from switchgear_core.grad.inner_gradients import inner_gradients
from switchgear_core.ir.choice import Choice
from switchgear_core.ir.dead_code import dead_code
from switchgear_core.ir.free_last_used import free_last_used
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import CHECK, BoundSymbol
from switchgear_core.ir.trace import Trace, compile_trace
from switchgear_core.ir.verify import verify
from switchgear_core.passes.checks_first import checks_first
from switchgear_core.passes.pass_through import pass_through
from switchgear_core.passes.reinplace import reinplace
from switchgear_core.regions.fuse import fuse
from switchgear_core.registry.answers import Answers
from switchgear_core.registry.claim import claim
from switchgear_core.registry.hookspecs import Building, Job, Stage
from switchgear_core.registry.plugin_passes import run_passes
from switchgear_core.registry.rules import Grads
from switchgear_core.registry.selection import Selection


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A trace made executable: its stages, the function of the last stage, and the choices.

    `blame` maps each executor to its name and version, and to the way to run without it. `check`: values are compared
    in every run.
    """

    stages: tuple[Trace, ...]
    function: Callable[..., Any]
    choices: tuple[Choice, ...]
    boxed: bool
    blame: Mapping[str, tuple[str, str]]
    check: bool
    #: The job after which the program is rebuilt.
    job: Job | None = None
    #: The answers that determine its regions, if compiled in the background.
    answers: Answers | None = None

    @property
    def is_outdated(self) -> bool:
        """Whether the background worker has finished a faster version."""
        return self.job is not None and self.job.is_done

    def line(self, number: int) -> BoundSymbol | None:
        """Return the bound symbol at line `number` of the function's file, if any."""
        body = self.stages[-1].bound_symbols
        last = max(line for _, _, line in self.function.__code__.co_lines() if line is not None)
        index = number - last + len(body)
        return body[index] if 0 <= index < len(body) else None


@dataclass(slots=True)
class Pipeline:
    """A runner of consecutive passes, which times and, under `SWITCHGEAR_VERIFY`, verifies each result.

    `choices` are the choices of plugins' passes.
    """

    traces: list[Trace]
    choices: list[Choice] = field(default_factory=list)
    checking: bool = field(default_factory=lambda: os.environ.get("SWITCHGEAR_VERIFY") == "1")

    def keep(self, name: str, trace: Trace, start: float) -> Trace:
        """Keep a trace as a stage; `start` is when its pass began, by `time.perf_counter`."""
        trace = trace.with_provenance(name, time.perf_counter() - start)
        self.traces.append(verify(trace) if self.checking else trace)
        return trace

    def run(self, name: str, function: Callable[[Trace], Trace]) -> Trace:
        """Run a pass, and keep its trace."""
        start = time.perf_counter()
        return self.keep(name, function(self.traces[-1]), start)

    def change(self, name: str, function: Callable[[Trace], Trace]) -> None:
        """Run a pass, and keep a stage only if the pass changed the trace."""
        start = time.perf_counter()
        trace = function(self.traces[-1])
        if trace is not self.traces[-1]:
            self.keep(name, trace, start)

    def plugin_passes(self, stage: Stage, selection: Selection, **facts: Any) -> Trace:
        """Run the passes of plugins at a stage; `facts` become part of their context."""
        trace, choices = run_passes(stage, self.traces[-1], selection, **facts)
        self.traces += map(verify, trace) if self.checking else trace
        self.choices += choices
        return self.traces[-1]


def prepare(trace: Trace, selection: Selection) -> tuple[tuple[Trace, ...], tuple[Choice, ...]]:
    """Return the stages independent of gradients, and the choices of these stages."""
    stages = Pipeline([trace])
    if stages.checking:
        verify(trace)
    trace = stages.traces[-1]
    start = time.perf_counter()
    replaced, choices = inner_gradients(trace, selection)
    if replaced is not trace:
        stages.keep("inner_gradients", replaced, start)
    stages.run("dead_code", dead_code)
    stages.plugin_passes("before_grad", selection)
    return tuple(stages.traces), (*choices, *stages.choices)


def compile_forward(
    stages: tuple[Trace, ...],
    selection: Selection,
    choices: tuple[Choice, ...] = (),
    destined: Mapping[int, int] = MappingProxyType({}),
) -> Program:
    """Return the program that runs a prepared trace without gradients.

    `destined` maps outputs to their inputs. An output that the program writes into its input becomes None.
    """
    unchanged = Pipeline([*stages])
    _simplify(unchanged, selection)
    return executable(unchanged, selection, boxed=False, choices=choices, destined=destined)


def differentiated(
    prepared: tuple[Trace, ...],
    selection: Selection,
    grad_outputs: Grads,
    higher_order: bool = False,
    hidden: frozenset[str] = frozenset(),
) -> tuple[Pipeline, Joint, Mapping[str, TensorProxy]]:
    """Return the stages up to the joint trace, the joint trace, and replaced values with their replacements."""
    stages = Pipeline([*prepared])
    start = time.perf_counter()
    joint = differentiate(prepared[-1], selection, grad_outputs, higher_order=higher_order)
    refuse_hidden_writes(joint, prepared[-1], hidden)
    stages.keep("differentiate", joint.trace, start)
    stages.plugin_passes("after_grad", selection, count=joint.count)
    if higher_order:
        # a trace to be differentiated again stays unchanged, so that gradients sum in autograd's order
        _simplify(stages, selection, joint.count, is_differentiated=True)
        return stages, replace(joint, trace=stages.traces[-1]), {}
    merged = _simplify(stages, selection, joint.count)
    residuals = tuple([merged.get(proxy.name, proxy) for proxy in joint.residuals])
    return stages, replace(joint, trace=stages.traces[-1], residuals=residuals), merged


def _simplify(
    stages: Pipeline,
    selection: Selection,
    count: int | None = None,
    is_differentiated: bool = False,
) -> Mapping[str, TensorProxy]:
    """Remove needless lines; return the removed values, each with its replacement.

    In a joint trace, `count` outputs belong to the forward. `is_differentiated`: again, later.
    """
    replaced: dict[str, TensorProxy] = {}
    facts = {"count": count, "is_differentiated": is_differentiated, "replaced": replaced}
    stages.plugin_passes("before_partition", selection, **facts)
    return replaced


def executable(
    stages: Pipeline,
    selection: Selection,
    *,
    boxed: bool,
    choices: tuple[Choice, ...] = (),
    destined: Mapping[int, int] = MappingProxyType({}),
) -> Program:
    """Return the program of an unclaimed trace; the given stages stay unchanged."""
    stages = replace(stages, traces=[*stages.traces], choices=[*stages.choices])
    source = stages.traces[-1]
    lines = source.bound_symbols
    if selection.fusion:
        stages.change("mark_writes", partial(reinplace, source=lines, destined=destined, mark=True))
        source = stages.traces[-1]
    parts_selection, buildings = _parts_of(source, selection, boxed)
    _fuse(stages, parts_selection, boxed)
    jobs = [job for building in buildings if (job := building.job()) is not None]
    stages.run("dead_code", dead_code)
    stages.change("reinplace", partial(reinplace, source=lines, destined=destined))
    outputs = stages.traces[-1].outputs
    destined = {place: n for place, n in destined.items() if outputs[place] is not None}
    stages.plugin_passes("after_claim", parts_selection, gives_gradients=boxed, destined=destined)
    trace = stages.run("free_last_used", free_last_used)
    for building in buildings:
        building.finished(trace)
    executed = dict.fromkeys(choice for item in trace.bound_symbols for choice in item.choices)
    function = compile_trace(trace, boxed=boxed)
    choices = (*choices, *stages.choices, *executed)
    blame = {one.name: (one.label, one.remedy) for one in selection.claimants}
    return Program(
        tuple(stages.traces),
        function,
        choices,
        boxed,
        blame,
        selection.check,
        next(iter(jobs), None),
        parts_selection.answers,
    )


def _parts_of(source: Trace, selection: Selection, boxed: bool) -> tuple[Selection, list[Building]]:
    """Return the selection to build a program with, and the parts that take part in it."""
    buildings: list[Building] = []
    for part in selection.parts.all:
        building = part.ask("switchgear_build", source=source, selection=selection, boxed=boxed)
        if building is not None:
            buildings.append(building)
            selection = building.selection
    return selection, buildings


def fused(trace: Trace, selection: Selection, boxed: bool) -> None:
    """Have executors claim a trace, and compile its regions."""
    _fuse(Pipeline([trace]), selection, boxed)


def _fuse(stages: Pipeline, selection: Selection, boxed: bool) -> None:
    """Have executors claim the last stage, and form regions."""
    trace = stages.plugin_passes("before_claim", selection)
    if any(CHECK in item.tags for item in trace.bound_symbols):
        stages.run("checks_first", checks_first)
    stages.run("claim", partial(claim, selection=selection))
    stages.change("pass_through", pass_through)
    stages.plugin_passes("before_fusion", selection, gives_gradients=boxed)
    if selection.fusion:
        stages.run("fuse", partial(fuse, selection=selection))
