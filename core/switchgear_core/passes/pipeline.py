"""The pipeline: the order of the passes over a captured trace."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.background.background import Job, resettled, settle
from switchgear_core.background.decisions import decided, note_lines
from switchgear_core.errors import DataDependent, Unsupported
from switchgear_core.grad.differentiate import Joint, differentiate
from switchgear_core.grad.hidden_writes import EAGERS, refuse_hidden_writes
from switchgear_core.grad.inner_gradients import inner_gradients
from switchgear_core.grad.partition import Partitioned, backward_for, partition
from switchgear_core.grad.undefined import without_undefined
from switchgear_core.ir.choice import Choice
from switchgear_core.ir.dead_code import dead_code
from switchgear_core.ir.free_last_used import free_last_used
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import CHECK, BoundSymbol, proxies, with_parts
from switchgear_core.ir.trace import Trace, compile_trace
from switchgear_core.ir.verify import verify
from switchgear_core.passes.checks_first import checks_first
from switchgear_core.passes.common_subexpressions import common_subexpressions
from switchgear_core.passes.fold_constants import fold_constants
from switchgear_core.passes.no_ops import no_ops
from switchgear_core.passes.pass_through import pass_through
from switchgear_core.passes.reinplace import reinplace
from switchgear_core.record.lock import compiles
from switchgear_core.record.sizes import Sizes, active_sizes, concrete
from switchgear_core.regions.fuse import fuse
from switchgear_core.registry.answers import Answers
from switchgear_core.registry.claim import claim
from switchgear_core.registry.hookspecs import Stage
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
        return self.job is not None and self.job.done

    def line(self, number: int) -> BoundSymbol | None:
        """Return the bound symbol at line `number` of the function's file, if any."""
        body = self.stages[-1].bound_symbols
        last = max(line for _, _, line in self.function.__code__.co_lines() if line is not None)
        index = number - last + len(body)
        return body[index] if 0 <= index < len(body) else None


@dataclass(slots=True)
class _Stages:
    """A runner of consecutive passes, which times and, under `SWITCHGEAR_VERIFY`, verifies each result.

    `choices` are the choices of plugins' passes.
    """

    traces: list[Trace]
    choices: list[Choice] = field(default_factory=list)
    checking: bool = field(default_factory=lambda: os.environ.get("SWITCHGEAR_VERIFY") == "1")

    def keep(self, name: str, trace: Trace, start: float) -> Trace:
        trace = trace.with_provenance(name, time.perf_counter() - start)
        self.traces.append(verify(trace) if self.checking else trace)
        return trace

    def run(self, name: str, function: Callable[[Trace], Trace]) -> Trace:
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
        made, choices = run_passes(stage, self.traces[-1], selection, **facts)
        self.traces += map(verify, made) if self.checking else made
        self.choices += choices
        return self.traces[-1]


def prepare(trace: Trace, selection: Selection) -> tuple[tuple[Trace, ...], tuple[Choice, ...]]:
    """Return the stages independent of gradients, and the choices of these stages."""
    stages = _Stages([trace])
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
    kept = _Stages([*stages])
    _simplify(kept)
    return _executable(kept, selection, boxed=False, choices=choices, destined=destined)


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """The programs of a differentiated trace, and the data for backwards of other grad outputs.

    Attributes:
        make_forward: gives the forward, rebuilt where outdated.
        make_backward: gives the backward for the expected grad outputs, compiled on first use: others may arrive
            instead.
        parts: the forward and backward, with the saved tensors.
        inner: the positions of saved tensors that carry a gradient of the backward, except inputs and outputs.
        merged: the values of the prepared trace that the partitioned trace replaced, each with its replacement.
    """

    make_forward: LazyProgram
    make_backward: LazyProgram
    parts: Partitioned
    inner: tuple[int, ...]
    prepared: Trace
    joint: Joint
    merged: Mapping[str, TensorProxy]

    def at(self, binding: Mapping[str, int]) -> Training:
        """Return a copy for calls of these symbolic sizes; unexpected backwards are compiled from the copy."""
        parts, prepared, joint = concrete((self.parts, self.prepared, self.joint), binding)
        merged = concrete(dict(self.merged), binding)
        fixed = tuple(replace(trace, numbers=()) for trace in (prepared, joint.trace))
        return replace(
            self,
            parts=parts,
            prepared=fixed[0],
            joint=replace(joint, trace=fixed[1]),
            merged=merged,
        )

    @property
    def forward(self) -> Program:
        """The most recent forward."""
        return self.make_forward.program or self.make_forward()

    @property
    def backward(self) -> Program:
        """The backward for the expected grad outputs."""
        return self.make_backward()

    @property
    def saved(self) -> tuple[TensorProxy, ...]:
        """The saved tensors that the backward takes next to the grad outputs, in order."""
        return self.parts.saved

    @property
    def ends(self) -> tuple[TensorProxy | None, ...]:
        """The outputs and inner saved tensors: the values that may have grad outputs."""
        return (
            *self.joint.trace.outputs[: self.joint.count],
            *(self.saved[index] for index in self.inner),
        )


def compile_training(
    stages: tuple[Trace, ...],
    selection: Selection,
    grad_outputs: Grads,
    mutated: Mapping[str, int],
    beside: Set[int],
    hidden: frozenset[str] = frozenset(),
    choices: tuple[Choice, ...] = (),
) -> Training:
    """Return the forward and backward programs of a prepared trace, for the expected grad outputs.

    `mutated` maps outputs that are copied into inputs after the forward, by name, to the index of the input. `beside`
    are the inputs in the same storages, and `hidden` names values that were overwritten through `.data`.
    """
    overwritten = frozenset(stages[-1].inputs[index].name for index in {*mutated.values(), *beside})
    forward, joint, merged = _differentiated(stages, selection, grad_outputs, hidden=hidden)
    backward = _Stages([*forward.traces])
    start = time.perf_counter()
    eager = partial(bytes_in_eager, stages, joint, selection, overwritten)
    parts = partition(joint, overwritten, selection.savings, bool(selection.fusion), eager)
    forward.keep("partition", parts.forward, start)
    backward.keep("partition", parts.backward, start)
    make_forward = LazyProgram(
        partial(_executable, forward, selection, boxed=False, choices=(*choices, *joint.choices))
    )
    make_forward()
    known = {
        proxy.name for proxy in proxies((parts.forward.inputs, joint.trace.outputs[: joint.count]))
    } - overwritten
    inner = tuple(
        i for i, proxy in enumerate(parts.saved) if proxy.requires_grad and proxy.name not in known
    )
    later = LazyProgram(partial(_executable, backward, selection, boxed=True))
    if joint.trace.numbers:
        later()  # decisions about symbolic sizes hold for the entry
    return Training(make_forward, later, parts, inner, stages[-1], joint, merged)


def bytes_in_eager(
    stages: tuple[Trace, ...], joint: Joint, selection: Selection, overwritten: frozenset[str]
) -> int:
    """Return the bytes that PyTorch's own formulas save; rules of plugins may save more or less."""
    if any(one.owner not in EAGERS or "skip rule" in one.reason for one in joint.choices):
        plain = replace(selection, rule_sources=(), strict=False)
        joint = _differentiated(stages, plain, joint.grad_outputs)[1]
    return partition(joint, overwritten).saved_bytes


@dataclass(slots=True, eq=False)
class LazyProgram:
    """A program that is compiled on first use, and recompiled once outdated.

    `mode` is the autocast mode of the compilation: off, because casts are part of a trace. A backward that runs under
    autocast is the exception: casts are recorded with its formulas.
    """

    make: Callable[[], Program]
    program: Program | None = None
    sizes: Sizes | None = field(default_factory=active_sizes)
    mode: Callable[[], contextlib.AbstractContextManager[object]] = internals.autocast_off

    def __call__(self) -> Program:
        """Return the current program; compile or recompile it if needed."""
        program = self.program
        if program is not None and not program.is_outdated:
            return program
        return self._compiled()

    @compiles
    def _compiled(self) -> Program:
        with torch.no_grad(), self.mode():
            if self.program is None:
                self.program = self.make()
            elif self.program.is_outdated:
                self.program = self._made_again(self.program)
        return self.program

    def _made_again(self, program: Program) -> Program:
        """Return the program recompiled, or unchanged where the new program would hold for fewer sizes."""
        if self.sizes is None:
            return self.make()
        settled = replace(program, job=None)
        try:
            new, constraints = self.sizes.compile_more(self.make)
        except (Unsupported, DataDependent):
            return settled
        return settled if constraints else new


def compile_backward(
    training: Training, selection: Selection, grad_outputs: Grads, wanted: tuple[bool, ...]
) -> Program:
    """Return a backward for other grad outputs than expected, or for fewer inputs, from the saved tensors.

    `grad_outputs` has an item for each of the training's `ends`.
    """
    return _executable(
        _other_backward(training, selection, grad_outputs, wanted, False), selection, boxed=True
    )


def differentiable_backward(
    training: Training, selection: Selection, grad_outputs: Grads, wanted: tuple[bool, ...]
) -> Trace:
    """Return the trace of such a backward for a further differentiation."""
    return _other_backward(training, selection, grad_outputs, wanted, True).traces[-1]


def _other_backward(
    training: Training,
    selection: Selection,
    grad_outputs: Grads,
    wanted: tuple[bool, ...],
    higher_order: bool,
) -> _Stages:
    start = time.perf_counter()
    expected, inner = grad_outputs[: training.joint.count], grad_outputs[training.joint.count :]
    fewer = None
    if not (higher_order or any(inner) or internals.autocast_active()):
        fewer = without_undefined(training.joint, expected)
    if fewer is None:
        prepared = replace(training.prepared, outputs=training.ends)
        stages, joint, _ = _differentiated((prepared,), selection, grad_outputs, higher_order)
    else:
        stages, joint = _Stages([training.prepared]), fewer
        stages.keep("undefined_grads", joint.trace, start)
    outputs = joint.trace.outputs
    forward, found = outputs[: joint.count], outputs[joint.count :]
    grads = tuple(grad if want else None for grad, want in zip(found, wanted, strict=True))
    merged = _still_merged(training, higher_order)
    body = [item.reading(merged) for item in joint.trace.bound_symbols]
    trace = replace(joint.trace, outputs=(*forward, *grads), bound_symbols=tuple(body))
    joint = replace(joint, trace=dead_code(trace))
    start = time.perf_counter()
    stages.keep("partition", backward_for(joint, training.parts), start)
    return stages


def _still_merged(training: Training, higher_order: bool) -> Mapping[str, TensorProxy]:
    """Map values of the prepared trace that are not saved to the saved value in their place.

    For a second derivative, keep only pairs of which both, or neither, require grad.
    """
    saved = {proxy.name for proxy in training.saved}
    own = {p.name: p for item in with_parts(training.prepared.bound_symbols) for p in item.outputs}
    pairs = (
        (own[name], twin)
        for name, twin in training.merged.items()
        if name in own and twin.name in saved
    )
    return {
        p.name: twin
        for p, twin in pairs
        if not higher_order or p.requires_grad == twin.requires_grad
    }


def _differentiated(
    prepared: tuple[Trace, ...],
    selection: Selection,
    grad_outputs: Grads,
    higher_order: bool = False,
    hidden: frozenset[str] = frozenset(),
) -> tuple[_Stages, Joint, Mapping[str, TensorProxy]]:
    """Return the stages up to the joint trace, the joint trace, and replaced values with their replacements."""
    stages = _Stages([*prepared])
    start = time.perf_counter()
    joint = differentiate(prepared[-1], selection, grad_outputs, higher_order=higher_order)
    refuse_hidden_writes(joint, prepared[-1], hidden)
    stages.keep("differentiate", joint.trace, start)
    stages.plugin_passes("after_grad", selection)
    if higher_order:
        # a trace to be differentiated again stays unchanged, so that gradients sum in autograd's order
        stages.change("fold_constants", fold_constants)
        return stages, replace(joint, trace=stages.traces[-1]), {}
    merged = _simplify(stages, joint.count)
    kept = tuple([merged.get(proxy.name, proxy) for proxy in joint.kept])
    return stages, replace(joint, trace=stages.traces[-1], kept=kept), merged


def _simplify(stages: _Stages, count: int | None = None) -> Mapping[str, TensorProxy]:
    """Remove needless lines; return the removed values, each with its replacement.

    In a joint trace, `count` outputs belong to the forward.
    """
    stages.change("fold_constants", fold_constants)
    gone: dict[str, TensorProxy] = {}

    def noting(
        function: Callable[[Trace], tuple[Trace, Mapping[str, TensorProxy]]], trace: Trace
    ) -> Trace:
        trace, found = function(trace)
        for name, proxy in gone.items():
            gone[name] = found.get(proxy.name, proxy)
        gone.update(found)
        return trace

    stages.change("no_ops", partial(noting, no_ops))
    stages.change(
        "common_subexpressions", partial(noting, partial(common_subexpressions, count=count))
    )
    return gone


def _executable(
    stages: _Stages,
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
    asked, decision = decided(source, selection)
    chosen, job = settle(source, asked, boxed)
    _fuse(stages, chosen, boxed)
    if chosen.answers is not None:
        job = resettled(source, selection, boxed, chosen.answers)
    stages.run("dead_code", dead_code)
    stages.change("reinplace", partial(reinplace, source=lines, destined=destined))
    outputs = stages.traces[-1].outputs
    destined = {place: n for place, n in destined.items() if outputs[place] is not None}
    stages.plugin_passes("after_claim", chosen, gives_gradients=boxed, destined=destined)
    trace = stages.run("free_last_used", free_last_used)
    note_lines(source, trace, chosen, decision)
    executed = dict.fromkeys(choice for item in trace.bound_symbols for choice in item.choices)
    function = compile_trace(trace, boxed=boxed)
    choices = (*choices, *stages.choices, *executed)
    blame = {one.name: (one.label, one.remedy) for one in selection.claimants}
    return Program(
        tuple(stages.traces), function, choices, boxed, blame, selection.check, job, chosen.answers
    )


def fused(trace: Trace, selection: Selection, boxed: bool) -> None:
    """Have executors claim a trace, and compile its regions."""
    _fuse(_Stages([trace]), selection, boxed)


def _fuse(stages: _Stages, selection: Selection, boxed: bool) -> None:
    """Have executors claim the last stage, and form regions."""
    trace = stages.plugin_passes("before_claim", selection)
    if any(CHECK in item.tags for item in trace.bound_symbols):
        stages.run("checks_first", checks_first)
    stages.run("claim", partial(claim, selection=selection))
    stages.change("pass_through", pass_through)
    stages.plugin_passes("before_fusion", selection, gives_gradients=boxed)
    if selection.fusion:
        stages.run("fuse", partial(fuse, selection=selection))


def expected_grad(proxy: TensorProxy) -> TensorProxy | None:
    """Return the most likely grad output of an output: of the output's layout, if dense."""
    return proxy.fresh(f"g_{proxy.name}") if proxy.requires_grad else None
