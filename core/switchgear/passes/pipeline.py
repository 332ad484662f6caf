"""The pipeline: which passes a captured trace goes through, in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from switchgear.choice import Choice
from switchgear.errors import RuleError, SwitchgearError
from switchgear.hookspecs import PassPlacement
from switchgear.printing import compile_trace
from switchgear.proxy import TensorProxy
from switchgear.rules import Grads
from switchgear.selection import Selection
from switchgear.symbol import BoundSymbol, proxies
from switchgear.trace import Trace
from switchgear.verify import verify

from .claim import claim
from .dead_code import dead_code
from .differentiate import Joint, differentiate
from .free_last_used import free_last_used
from .inner_gradients import inner_gradients
from .partition import backward_for, partition


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A trace made executable: every stage it went through, the last one's function, and the choices."""

    stages: tuple[Trace, ...]
    function: Callable[..., Any]
    choices: tuple[Choice, ...]
    boxed: bool = False

    def line(self, number: int) -> BoundSymbol | None:
        """The bound symbol that line `number` of the function's file is, if it is one."""
        body = self.stages[-1].bound_symbols
        last = max(line for _, _, line in self.function.__code__.co_lines() if line is not None)
        index = number - last + len(body)
        return body[index] if 0 <= index < len(body) else None


@dataclass(slots=True)
class _Stages:
    """Runs passes one after another, timing and, under `SWITCHGEAR_VERIFY`, verifying what each makes."""

    traces: list[Trace]
    checking: bool = field(default_factory=lambda: bool(os.environ.get("SWITCHGEAR_VERIFY")))

    def keep(self, name: str, trace: Trace, start: float) -> Trace:
        trace = trace.with_provenance(name, time.perf_counter() - start)
        self.traces.append(verify(trace) if self.checking else trace)
        return trace

    def run(self, name: str, function: Callable[[Trace], Trace]) -> Trace:
        start = time.perf_counter()
        return self.keep(name, function(self.traces[-1]), start)

    def plugin_passes(self, stage: str, selection: Selection) -> Trace:
        for placement in selection.passes:
            if placement.stage == stage:
                self.run(placement.name, partial(_run_guarded, placement))
        return self.traces[-1]


def _run_guarded(placement: PassPlacement, trace: Trace) -> Trace:
    try:
        result: Any = placement.run(trace)
    except SwitchgearError:
        raise
    except Exception as error:
        raise RuleError(f"pass {placement.name!r} of a plugin raised {type(error).__name__}: {error}") from error
    if not isinstance(result, Trace):
        raise RuleError(f"pass {placement.name!r} of a plugin returned a {type(result).__name__}, not a Trace")
    return result


def prepare(trace: Trace, selection: Selection) -> tuple[tuple[Trace, ...], tuple[Choice, ...]]:
    """The stages before it is known whether gradients are wanted, and the choices made there."""
    stages = _Stages([trace])
    if stages.checking:
        verify(trace)
    start = time.perf_counter()
    replaced, choices = inner_gradients(trace, selection)
    if replaced is not trace:
        stages.keep("inner_gradients", replaced, start)
    stages.run("dead_code", dead_code)
    stages.plugin_passes("before_grad", selection)
    return tuple(stages.traces), choices


def compile_forward(stages: tuple[Trace, ...], selection: Selection, choices: tuple[Choice, ...] = ()) -> Program:
    """The program that runs a prepared trace without gradients."""
    return _executable(_Stages([*stages]), selection, boxed=False, choices=choices)


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """The programs of a differentiated trace, and what is needed to make backwards for other grad outputs.

    `inner` are the positions of those saved values through which a gradient of the backward itself may flow, and
    which are neither inputs nor outputs.
    """

    forward: Program
    backward: Program
    saved: tuple[TensorProxy, ...]
    inner: tuple[int, ...]
    prepared: Trace
    joint: Joint

    @property
    def ends(self) -> tuple[TensorProxy | None, ...]:
        """The outputs, and the inner saved values: what gradients can be given for."""
        return (*self.joint.trace.outputs[: self.joint.count], *(self.saved[index] for index in self.inner))


def compile_training(
    stages: tuple[Trace, ...],
    selection: Selection,
    grad_outputs: Grads,
    overwritten: frozenset[str],
    choices: tuple[Choice, ...] = (),
) -> Training:
    """The forward and backward programs of a prepared trace, for the grad outputs that are expected."""
    forward, joint = _differentiated(stages, selection, grad_outputs)
    backward = _Stages([*forward.traces])
    start = time.perf_counter()
    parts = partition(joint, overwritten)
    forward.keep("partition", parts.forward, start)
    backward.keep("partition", parts.backward, start)
    forward_program = _executable(forward, selection, boxed=False, choices=(*choices, *joint.choices))
    known = {proxy.name for proxy in proxies((parts.forward.inputs, joint.trace.outputs[: joint.count]))} - overwritten
    inner = tuple(i for i, proxy in enumerate(parts.saved) if proxy.requires_grad and proxy.name not in known)
    backward_program = _executable(backward, selection, boxed=True)
    return Training(forward_program, backward_program, parts.saved, inner, stages[-1], joint)


def compile_backward(
    training: Training, selection: Selection, grad_outputs: Grads, wanted: tuple[bool, ...]
) -> Program:
    """A backward for other grad outputs than expected, or for fewer inputs, from what the forward saves.

    `grad_outputs` has one for each of the training's `ends`.
    """
    return _executable(_other_backward(training, selection, grad_outputs, wanted, False), selection, boxed=True)


def differentiable_backward(
    training: Training, selection: Selection, grad_outputs: Grads, wanted: tuple[bool, ...]
) -> Trace:
    """Like `compile_backward`, as a trace that can be differentiated in its turn."""
    return _other_backward(training, selection, grad_outputs, wanted, True).traces[-1]


def _other_backward(
    training: Training, selection: Selection, grad_outputs: Grads, wanted: tuple[bool, ...], higher_order: bool
) -> _Stages:
    prepared = replace(training.prepared, outputs=training.ends)
    stages, joint = _differentiated((prepared,), selection, grad_outputs, higher_order)
    outputs = joint.trace.outputs
    grads = tuple(grad if want else None for grad, want in zip(outputs[joint.count :], wanted, strict=True))
    joint = replace(joint, trace=dead_code(replace(joint.trace, outputs=(*outputs[: joint.count], *grads))))
    start = time.perf_counter()
    stages.keep("partition", backward_for(joint, training.saved), start)
    return stages


def _differentiated(
    prepared: tuple[Trace, ...], selection: Selection, grad_outputs: Grads, higher_order: bool = False
) -> tuple[_Stages, Joint]:
    stages = _Stages([*prepared])
    start = time.perf_counter()
    joint = differentiate(prepared[-1], selection, grad_outputs, higher_order=higher_order)
    stages.keep("differentiate", joint.trace, start)
    return stages, replace(joint, trace=stages.plugin_passes("after_grad", selection))


def _executable(stages: _Stages, selection: Selection, *, boxed: bool, choices: tuple[Choice, ...] = ()) -> Program:
    trace = stages.plugin_passes("before_claim", selection)
    start = time.perf_counter()
    trace, made = claim(trace, selection)
    stages.keep("claim", trace, start)
    stages.run("dead_code", dead_code)
    trace = stages.run("free_last_used", free_last_used)
    return Program(tuple(stages.traces), compile_trace(trace, boxed=boxed), (*choices, *made), boxed)


def expected_grad(proxy: TensorProxy) -> TensorProxy | None:
    """The grad output that autograd most likely gives for an output: of its own layout, if it is dense."""
    grad = replace(proxy, name=f"g_{proxy.name}", requires_grad=False, storage_offset=0, is_conj=False, is_neg=False)
    return grad if proxy.requires_grad else None
