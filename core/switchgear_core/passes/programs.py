"""The programs of a captured trace: forward, backward, and backwards for other grad outputs, each made on first use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Container, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import DataDependent, NotDifferentiable, Unsupported
from switchgear_core.grad.differentiate import Joint
from switchgear_core.grad.hidden_writes import EAGERS
from switchgear_core.grad.partition import Partitioned, backward_for, partition
from switchgear_core.grad.undefined import without_undefined
from switchgear_core.ir.choice import Choice
from switchgear_core.ir.dead_code import dead_code
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import proxies, with_parts
from switchgear_core.ir.trace import Trace
from switchgear_core.passes.pipeline import (
    Pipeline,
    Program,
    compile_forward,
    differentiated,
    executable,
    prepare,
)
from switchgear_core.record.attempts import compiles
from switchgear_core.record.sizes import Sizes, active_sizes, concrete
from switchgear_core.registry.rules import Grads
from switchgear_core.registry.selection import Selection


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
        final = replace(program, job=None)
        try:
            new, constraints = self.sizes.compile_more(self.make)
        except (Unsupported, DataDependent):
            return final
        return final if constraints else new


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
    sharing: Set[int],
    hidden: frozenset[str] = frozenset(),
    choices: tuple[Choice, ...] = (),
) -> Training:
    """Return the forward and backward programs of a prepared trace, for the expected grad outputs.

    `mutated` maps outputs that are copied into inputs after the forward, by name, to the index of the input. `sharing`
    are the inputs in the same storages, and `hidden` names values that were overwritten through `.data`.
    """
    overwritten = frozenset(
        stages[-1].inputs[index].name for index in {*mutated.values(), *sharing}
    )
    forward, joint, merged = differentiated(stages, selection, grad_outputs, hidden=hidden)
    backward = Pipeline([*forward.traces])
    start = time.perf_counter()
    eager = partial(bytes_in_eager, stages, joint, selection, overwritten)
    parts = partition(joint, overwritten, selection.savings, bool(selection.fusion), eager)
    forward.keep("partition", parts.forward, start)
    backward.keep("partition", parts.backward, start)
    make_forward = LazyProgram(
        partial(executable, forward, selection, boxed=False, choices=(*choices, *joint.choices))
    )
    make_forward()
    ends = {
        proxy.name for proxy in proxies((parts.forward.inputs, joint.trace.outputs[: joint.count]))
    } - overwritten
    inner = tuple(
        i for i, proxy in enumerate(parts.saved) if proxy.requires_grad and proxy.name not in ends
    )
    later = LazyProgram(partial(executable, backward, selection, boxed=True))
    if joint.trace.numbers:
        later()  # decisions about symbolic sizes hold for the entry
    return Training(make_forward, later, parts, inner, stages[-1], joint, merged)


def bytes_in_eager(
    stages: tuple[Trace, ...], joint: Joint, selection: Selection, overwritten: frozenset[str]
) -> int:
    """Return the bytes that PyTorch's own formulas save; rules of plugins may save more or less."""
    if any(one.owner not in EAGERS or "skip rule" in one.reason for one in joint.choices):
        plain = replace(selection, rule_sources=(), strict=False)
        with contextlib.suppress(NotDifferentiable):  # PyTorch has no formula
            joint = differentiated(stages, plain, joint.grad_outputs)[1]
    return partition(joint, overwritten).saved_bytes


def compile_backward(
    training: Training, selection: Selection, grad_outputs: Grads, wanted: tuple[bool, ...]
) -> Program:
    """Return a backward for other grad outputs than expected, or for fewer inputs, from the saved tensors.

    `grad_outputs` has an item for each of the training's `ends`.
    """
    return executable(
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
) -> Pipeline:
    start = time.perf_counter()
    expected, inner = grad_outputs[: training.joint.count], grad_outputs[training.joint.count :]
    fewer = None
    if not (higher_order or any(inner) or internals.autocast_active()):
        fewer = without_undefined(training.joint, expected)
    if fewer is None:
        prepared = replace(training.prepared, outputs=training.ends)
        stages, joint, _ = differentiated((prepared,), selection, grad_outputs, higher_order)
    else:
        stages, joint = Pipeline([training.prepared]), fewer
        stages.keep("undefined_grads", joint.trace, start)
    outputs = joint.trace.outputs
    forward, gradients = outputs[: joint.count], outputs[joint.count :]
    grads = tuple(grad if want else None for grad, want in zip(gradients, wanted, strict=True))
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


class Programs:
    """The programs of a captured trace, each compiled when it is first asked for.

    Args:
        trace: the captured trace.
        selection: the participants of the call.
    """

    def __init__(self, trace: Trace, selection: Selection) -> None:
        self.selection = selection
        self._stages, self._choices = prepare(trace, selection)
        self._forward: LazyProgram | None = None
        self._training: Training | None = None

    @property
    def prepared(self) -> Trace:
        """The captured trace after the passes before differentiation."""
        return self._stages[-1]

    def expected(self, outputs: Container[int] | None = None) -> Grads:
        """Return the expected grad output of each output; None where none is expected.

        Args:
            outputs: the positions of the outputs that autograd sees; None for all.
        """
        return tuple(
            expected_grad(proxy)
            if proxy is not None and (outputs is None or index in outputs)
            else None
            for index, proxy in enumerate(self.prepared.outputs)
        )

    def forward(self, destined: Mapping[int, int] | None = None) -> LazyProgram:
        """Return the program without gradients; without an argument, the one of the last call if there is one.

        Args:
            destined: outputs that are only copied into inputs after the run, with the positions of the inputs. An
                output that the program writes into its input becomes None.
        """
        if destined is None and self._forward is not None:
            return self._forward
        to = destined or {}
        make = partial(compile_forward, self._stages, self.selection, self._choices, to)
        self._forward = LazyProgram(make)
        return self._forward

    def training(
        self,
        grad_outputs: Grads | None = None,
        mutated: Mapping[str, int] = MappingProxyType({}),
        sharing: Set[int] = frozenset(),
        hidden: frozenset[str] = frozenset(),
    ) -> Training:
        """Return the forward that saves, and the backward; without an argument, those of the last call, if any.

        Args:
            grad_outputs: as returned by `expected`; None for all that are expected.
            mutated: outputs that are copied into inputs after the forward, by name, with the positions of the inputs.
            sharing: the inputs that share their storages.
            hidden: values that were overwritten through `.data`, by name.
        """
        if grad_outputs is None and self._training is not None:
            return self._training
        grads = self.expected() if grad_outputs is None else grad_outputs
        self._training = compile_training(
            self._stages, self.selection, grads, mutated, sharing, hidden, self._choices
        )
        return self._training


def expected_grad(proxy: TensorProxy) -> TensorProxy | None:
    """Return the most likely grad output of an output: of the output's layout, if dense."""
    return proxy.fresh(f"g_{proxy.name}") if proxy.requires_grad else None
