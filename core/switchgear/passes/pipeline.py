"""The pipeline: which passes a captured trace goes through, in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from switchgear.choice import Choice
from switchgear.errors import RuleError, SwitchgearError
from switchgear.printing import compile_trace
from switchgear.proxy import TensorProxy
from switchgear.rules import Grads
from switchgear.selection import Selection
from switchgear.symbol import BoundSymbol
from switchgear.trace import Trace
from switchgear.verify import verify

from .claim import Claimed, claim
from .dead_code import dead_code
from .differentiate import Joint, differentiate
from .free_last_used import free_last_used
from .partition import Partitioned, backward_for, partition


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A trace made executable: every stage it went through, the last one's function, and the choices."""

    stages: tuple[Trace, ...]
    function: Callable[..., Any]
    choices: tuple[Choice, ...]
    boxed: bool = False

    def line(self, number: int) -> BoundSymbol | None:
        """The bound symbol that line `number` of the function's file is, if it is one."""
        trace = self.stages[-1]
        index = number - self._first_line()
        return trace.bound_symbols[index] if 0 <= index < len(trace.bound_symbols) else None

    def _first_line(self) -> int:
        code = self.function.__code__
        lines = [line for _, _, line in code.co_lines() if line is not None]
        return max(lines) - len(self.stages[-1].bound_symbols)


@dataclass(slots=True)
class _Stages:
    """Runs passes one after another, timing and, under `SWITCHGEAR_VERIFY`, verifying what each makes."""

    traces: list[Trace] = field(default_factory=list)
    checking: bool = field(default_factory=lambda: bool(os.environ.get("SWITCHGEAR_VERIFY")))

    def keep(self, name: str, trace: Trace, start: float) -> Trace:
        trace = trace.with_provenance(name, time.perf_counter() - start)
        self.traces.append(verify(trace) if self.checking else trace)
        return trace

    def run(self, name: str, function: Callable[[Trace], Trace], trace: Trace) -> Trace:
        start = time.perf_counter()
        return self.keep(name, function(trace), start)

    def plugin_passes(self, stage: str, selection: Selection, trace: Trace) -> Trace:
        for placement in selection.passes:
            if placement.stage == stage:
                trace = self.run(placement.name, _guarded(placement.name, placement.run), trace)
        return trace


def _guarded(name: str, function: Callable[[Trace], Trace]) -> Callable[[Trace], Trace]:
    def run(trace: Trace) -> Trace:
        try:
            result = function(trace)
        except SwitchgearError:
            raise
        except Exception as error:
            raise RuleError(f"pass {name!r} of a plugin raised {type(error).__name__}: {error}") from error
        if not isinstance(result, Trace):
            raise RuleError(f"pass {name!r} of a plugin returned a {type(result).__name__}, not a Trace")
        return result

    return run


def prepare(trace: Trace, selection: Selection) -> tuple[Trace, ...]:
    """The stages before it is known whether gradients are wanted."""
    stages = _Stages([trace])
    if stages.checking:
        verify(trace)
    trace = stages.run("dead_code", dead_code, trace)
    stages.plugin_passes("before_grad", selection, trace)
    return tuple(stages.traces)


def compile_forward(stages: tuple[Trace, ...], selection: Selection) -> Program:
    """The program that runs a prepared trace without gradients."""
    return _executable(_Stages(list(stages)), stages[-1], selection, boxed=False)


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """The programs of a differentiated trace, and what is needed to make backwards for other grad outputs."""

    forward: Program
    backward: Program
    partitioned: Partitioned
    prepared: Trace
    joint: Joint


def compile_training(
    stages: tuple[Trace, ...], selection: Selection, grad_outputs: Grads, overwritten: frozenset[str]
) -> Training:
    """The forward and backward programs of a prepared trace, for the grad outputs that are expected."""
    kept, joint = _joint(stages, selection, grad_outputs)
    start = time.perf_counter()
    parts = partition(joint, overwritten)
    seconds = time.perf_counter() - start
    forward = _Stages(list(kept.traces))
    backward = _Stages(list(kept.traces))
    forward.traces.append(parts.forward.with_provenance("partition", seconds))
    backward.traces.append(parts.backward.with_provenance("partition", seconds))
    programs = (
        _executable(forward, forward.traces[-1], selection, boxed=False, choices=joint.choices),
        _executable(backward, backward.traces[-1], selection, boxed=True),
    )
    return Training(*programs, parts, stages[-1], joint)


def compile_backward(
    training: Training, selection: Selection, grad_outputs: Grads, wanted: tuple[bool, ...]
) -> Program:
    """A backward for other grad outputs than expected, or for fewer inputs, from what the forward saves."""
    stages, joint = _joint((training.prepared,), selection, grad_outputs)
    outputs = joint.trace.outputs
    grads = tuple(grad if want else None for grad, want in zip(outputs[joint.count :], wanted, strict=True))
    joint = replace(joint, trace=dead_code(replace(joint.trace, outputs=(*outputs[: joint.count], *grads))))
    start = time.perf_counter()
    trace = stages.keep("partition", backward_for(joint, training.partitioned), start)
    return _executable(stages, trace, selection, boxed=True)


def _joint(stages: tuple[Trace, ...], selection: Selection, grad_outputs: Grads) -> tuple[_Stages, Joint]:
    kept = _Stages(list(stages))
    start = time.perf_counter()
    joint = differentiate(stages[-1], selection, grad_outputs)
    trace = kept.keep("differentiate", joint.trace, start)
    trace = kept.plugin_passes("after_grad", selection, trace)
    return kept, replace(joint, trace=trace)


def _executable(
    stages: _Stages, trace: Trace, selection: Selection, *, boxed: bool, choices: tuple[Choice, ...] = ()
) -> Program:
    trace = stages.plugin_passes("before_claim", selection, trace)
    start = time.perf_counter()
    claimed: Claimed = claim(trace, selection)
    trace = stages.keep("claim", claimed.trace, start)
    trace = stages.run("dead_code", dead_code, trace)
    trace = stages.run("free_last_used", free_last_used, trace)
    return Program(tuple(stages.traces), compile_trace(trace, boxed=boxed), (*choices, *claimed.choices), boxed)


def expected_grad(proxy: TensorProxy) -> TensorProxy | None:
    """The grad output that autograd most likely gives for an output: of its own layout, if it is dense."""
    if not proxy.requires_grad:
        return None
    return replace(proxy, name=f"g_{proxy.name}", requires_grad=False, storage_offset=0)
