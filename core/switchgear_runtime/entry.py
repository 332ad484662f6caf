"""An entry: one compiled specialisation of a jitted function."""

from __future__ import annotations

import itertools
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import ExecutorUnavailable, PluginWarning, Unsupported
from switchgear_core.grad.hidden_writes import refuse_saved
from switchgear_core.ir.symbol import CHECK
from switchgear_core.passes.pipeline import Program
from switchgear_core.passes.programs import Programs
from switchgear_core.protocols import CapturedCall, Run, Runtime
from switchgear_core.record.attempts import compiles
from switchgear_core.record.guards import still_there
from switchgear_core.record.shared_memory import sharing
from switchgear_core.record.signature import Arguments, Base, HeldNumber, number_place, tensor_of
from switchgear_core.record.sizes import Marks, symbolic
from switchgear_core.record.user_code import user_frame
from switchgear_core.registry.hookspecs import Job
from switchgear_core.registry.selection import Selection
from switchgear_frontend.outputs import Outputs, reshaped_inputs
from switchgear_frontend.session import capture
from switchgear_runtime.autograd_bridge import Bridge, wakes_functions
from switchgear_runtime.backwards import Jit
from switchgear_runtime.epilogue import (
    Finisher,
    add_versions,
    assembly,
    finisher,
    left_to_copy,
    through_data,
    versions_to_add,
)
from switchgear_runtime.execution import maybe_views, runner
from switchgear_runtime.modes import rare_modes_watched
from switchgear_runtime.module_state import any_hooks
from switchgear_runtime.prologue import MISS, generated, make_prologue
from switchgear_runtime.rewinding import rewinding, streams_before_late_checks


class Entry:
    """A captured call, compiled; `prologue` tells whether another call fits, `run` runs it."""

    #: Whether the front end of a part captured the call.
    is_of_frontend = False

    @compiles
    def __init__(
        self,
        function: Callable[..., object],
        call: Arguments,
        module: torch.nn.Module | None,
        selection: Selection,
        rejit: Jit,
        reads_inputs: bool | None = False,
        marks: Marks = MappingProxyType({}),
        *,
        drop: Callable[[], Callable[..., None] | None],
    ) -> None:
        leaves, self.spec = call.leaves, call.spec
        #: The numbers among the arguments of the captured call.
        self._numbers = [
            leaf if type(leaf) in (int, float) and index not in call.unread else None
            for index, leaf in enumerate(leaves)
        ]
        self._name = getattr(function, "__qualname__", "a function")
        self.forward: Program
        #: The runtime of a part, in place of the usual runtime.
        self._runtime: Runtime | None = selection.parts.only(
            "switchgear_runtime", selection=selection
        )
        #: Casts are part of the trace.
        self._autocast = internals.autocast_active()
        #: Why dynamic sizes are fixed for this entry; else empty.
        self.fixed = ""
        self._copies: tuple[Callable[..., Sequence[Any]], Finisher] | None = None
        #: Why the entry cannot be a part of a split function; else empty.
        self.no_part = ""

        def make(marks: Marks) -> None:
            self.captured = capture(
                function,
                leaves,
                call.spec,
                selection.handlers,
                module,
                reads_inputs=reads_inputs,
                marks=marks,
                containers_are_leaves=call.containers_are_leaves,
            )
            self._watch(drop)
            tensors = [tensor_of(source, leaves) for source in self.captured.sources]
            with torch.no_grad(), internals.autocast_off(), symbolic(self.captured.sizes):
                self._compile(tensors, selection, rejit)
            if self.bridge is not None:
                self.bridge.backwards.failed = partial(give_up, weakref.ref(self), drop)
            if self.captured.sizes is not None:
                self.captured.sizes.close(self.captured.trace.inputs)
                self.captured.sizes.check(tensors)
            for guard in self.captured.guards:
                if guard.settle is not None:
                    guard.settle()
            self._prologue = make_prologue(self.captured, call, tensors)
            self.prologue = self._prologue.before(["return inputs"], {}, None)

        with rare_modes_watched():
            try:
                make(marks)
            except ExecutorUnavailable:
                raise
            except Exception as error:
                if not marks:
                    raise
                # code that accepts only numbers, the function's own too, fails in many ways
                self.fixed = f"{type(error).__name__}: {error}".partition("\n")[0]
                make({})
        #: Whether the entry is for a module whose call is its forward and nothing else.
        self.is_forward_alone = module is not None and not any_hooks([module])
        #: The number of runs before the forward was exchanged for a program with regions.
        self.calls_before = 0
        self._calls = itertools.count()
        self._finish()

    def why_not(self, call: Arguments) -> str:
        """Return the difference by which a call of the same key does not fit."""
        sizes = self.captured.sizes
        if self.fixed:
            return f"sizes are fixed, for with dynamic ones there was {self.fixed}"
        if sizes is None:
            return f"{self._prologue.why_not(call)} changed"
        try:
            violation = sizes.violated(
                [tensor_of(source, call.leaves) for source in self.captured.sources]
            )
        except (Unsupported, IndexError):
            violation = None  # a place holds no possible input, or a tensor with fewer dimensions than in the capture
        return (
            f"{self._prologue.why_not(call)} changed"
            if violation is None
            else f"an entry is for calls with {violation}"
        )

    def varying(self, leaves: list[Any]) -> list[str]:
        """Return the places of numbers, in arguments and Python objects, that differ in a call."""
        pairs = zip(self._numbers, leaves, strict=False)
        changed = [
            number_place(index)
            for index, (one, other) in enumerate(pairs)
            if type(one) is type(other) in (int, float) and one != other
        ]
        paths = (guard.varying(leaves) for guard in self.captured.guards if guard.varying)
        return [*changed, *itertools.chain.from_iterable(paths)]

    def decided(self) -> list[str]:
        """Return the symbolic integers in Python objects that are fixed to their values nevertheless."""
        sizes, inputs = self.captured.sizes, self.captured.trace.inputs
        if sizes is None:
            return []
        decided = {number.tensor for number in sizes.numbers if sizes.is_decided(number)}
        pairs = zip(self.captured.sources, inputs, strict=True)
        return [
            source.path
            for source, proxy in pairs
            if isinstance(source, HeldNumber) and proxy.name in decided
        ]

    def guards(self) -> list[str]:
        """Return the guards of the entry, in words."""
        checks = [line for line in self.captured.trace.bound_symbols if CHECK in line.tags]
        # a value of the data, or a tensor with its shape and strides
        values = [
            (line, line.args[0] if line.args[0] not in line.inputs else line.args[1])
            for line in checks
        ]
        return [
            *self._prologue.conditions(),
            *(f"data at {line.source}: {value!r}" for line, value in values),
        ]

    def _watch(self, drop: Callable[[], Callable[..., None] | None]) -> None:
        """Invalidate this entry when one of its modules is collected; `drop` refers weakly to `Compiler._drop`."""
        this, collected, is_ending = weakref.ref(self), self.captured.dead, sys.is_finalizing

        def notice(part: object) -> None:
            if is_ending():  # modules whose functions could hash a key are gone already
                return
            collected.append(part)
            entry, dropping = this(), drop()
            if entry is not None and dropping is not None:
                dropping(entry)

        modules = (module for guard in self.captured.guards for module in guard.modules)
        parts = (*self.captured.parts(), *still_there(modules))
        self._watched = [weakref.ref(part, notice) for part in parts]

    def _finish(self) -> None:
        """Build `run` and `call` from the current forward."""
        lines, scope = self._finishing()
        run: Run = generated("run(inputs)", lines, {**scope})
        if self._runtime is not None:
            run = self._runtime.run(self._captured_call(), self._programs)
        if self.forward.job is not None:
            run = self._waiting(run, self.forward.job)
        if streams := streams_before_late_checks(self.captured.trace):
            run = rewinding(run, streams)
        if self.forward.job is not None or streams or self._runtime is not None:
            lines, scope = ["return run(inputs)"], {"run": run}
        #: Runs the program on the inputs of `prologue`. Returns `MISS` where the program does not support the context.
        self.run = run
        #: Returns the function's result for the arguments of a call that fits, else `MISS`.
        self.call = self._prologue.before(lines, scope)

    def _captured_call(self) -> CapturedCall:
        """Return the captured call, for the runtime of a part."""
        outputs, trace = self.captured.outputs, self.captured.trace
        missing = versions_to_add(outputs, outputs, {}, trace.inputs)
        finish = self._completing(outputs, missing)
        return CapturedCall(trace, lambda *call: self.prologue(*call), finish, (*self.guards(),))

    def _waiting(self, run: Run, job: Job) -> Run:
        """Return `run`, which exchanges the program once the background compilation is done."""
        calls = self._calls

        def run_waiting(inputs: Sequence[torch.Tensor]) -> Any:
            if job.is_done:
                self.exchange()
                return self.run(inputs)
            next(calls)
            return run(inputs)

        return run_waiting

    @compiles
    def exchange(self) -> None:
        """Replace an outdated forward by the current one."""
        job = self.forward.job
        if job is None or not job.is_done:
            return
        for message in job.told(self._name):
            warnings.warn(message, PluginWarning, stacklevel=user_frame()[1])
        self.calls_before = next(self._calls)
        self.forward = self._make_forward()
        if self.bridge is not None:
            self.bridge.take_forward(self.forward)
        self._finish()

    def programs(self) -> list[Program]:
        """Return the forward, and the backwards that ran."""
        backwards = [] if self.bridge is None else self.bridge.backwards.programs()
        return [self.forward, *[one.program for one in backwards if one.program is not None]]

    def exchange_all(self) -> None:
        """Exchange the forward and the backwards."""
        self.exchange()
        for lazy in [] if self.bridge is None else self.bridge.backwards.programs():
            lazy()

    def _finishing(self) -> tuple[list[str], dict[str, object]]:
        """Return the lines from `inputs` to the return value, and the scope of the lines."""
        outputs, first = self.captured.outputs, list[str]()
        counts: dict[int, int] = {}
        if self.bridge is not None:
            program, scope = self.bridge.connected()
        else:
            forward = self._without_gradients(self.forward)
            program, scope = "program(*inputs)", {"program": forward}
            if self.forward.stages[-1].writes:
                # tangents and batches need the program that copies
                first = ["if forward_mode_active() or functorch_active(): return copying(inputs)"]
                scope |= {
                    "forward_mode_active": internals.forward_mode_active,
                    "functorch_active": internals.functorch_active,
                    "copying": self._copying,
                }
                outputs, counts, data_inputs = left_to_copy(outputs, self.forward.stages[-1])
                if data_inputs:
                    program, scope["through_data"] = (
                        "program(*through_data(inputs))",
                        partial(through_data, data_inputs),
                    )
        missing = versions_to_add(
            self.captured.outputs, outputs, counts, self.captured.trace.inputs
        )
        value = None
        if not (self.captured.after or outputs.mutations or missing):
            value = assembly(outputs, scope)
        if value is None:
            value, scope["complete"] = (
                "complete(outputs, inputs)",
                self._completing(outputs, missing),
            )
        lines = [*first, f"outputs = {program}", f"return {value}"]
        if self.bridge is not None and not self.bridge.by_autograd:
            # a Function has no tangents
            lines.insert(0, "if forward_mode_active() and has_tangents(inputs): return miss")
            scope |= {
                "forward_mode_active": internals.forward_mode_active,
                "has_tangents": internals.has_tangents,
                "miss": MISS,
            }
        return lines, scope

    def _completing(self, outputs: Outputs, missing: Sequence[int]) -> Finisher:
        """Return the end of a call: the epilogue, `missing` versions, and the actions of features."""
        captured = self.captured
        complete = finisher(outputs, captured.trace.inputs, captured.sizes)
        if missing:  # first: returned views are made of the latest version
            complete = _then(partial(add_versions, missing), complete)
        for after in captured.after:
            complete = _then(complete, after)
        return complete

    def _copying(self, inputs: Sequence[torch.Tensor]) -> Any:
        """Run a program that writes to no input, then copy into the inputs."""
        if self._copies is None and not self._make_copies():
            return MISS  # the program would hold for fewer sizes
        assert self._copies is not None
        run, complete = self._copies
        return complete(run(*inputs), inputs)

    @compiles
    def _make_copies(self) -> bool:
        make, sizes = self._programs.forward({}).make, self.captured.sizes
        with torch.no_grad(), internals.autocast_off():
            program, decided = (make(), []) if sizes is None else sizes.compile_more(make)
        if not decided:
            outputs = self.captured.outputs
            missing = versions_to_add(outputs, outputs, {}, self.captured.trace.inputs)
            self._copies = self._without_gradients(program), self._completing(outputs, missing)
        return not decided

    def _without_gradients(self, program: Program) -> Callable[..., Sequence[Any]]:
        """Return a callable that computes the trace's outputs unseen by autograd."""
        captured, run = self.captured, runner(program, autocast=self._autocast)
        hidden = captured.grad_enabled and any(
            proxy.requires_grad for proxy in captured.trace.inputs
        )
        views, set_grad_enabled = maybe_views(program), internals.set_grad_enabled
        forward_mode_active = internals.forward_mode_active

        def outputs_of(*inputs: torch.Tensor) -> Sequence[Any]:
            if hidden:
                try:
                    set_grad_enabled(False)
                    outputs = run(*inputs)
                finally:
                    set_grad_enabled(True)
            else:
                outputs = run(*inputs)
            # under forward-mode differentiation a detached result would lose its tangent
            if (
                views
                and any(outputs[index]._is_view() for index in views)
                and not forward_mode_active()
            ):
                return [output if output is None else output.detach() for output in outputs]
            return outputs  # type: ignore[no-any-return]

        return outputs_of if hidden or views else run

    def _compile(self, tensors: Sequence[torch.Tensor], selection: Selection, rejit: Jit) -> None:
        programs = self._programs = Programs(self.captured.trace, selection)
        prepared, outputs = programs.prepared, self.captured.outputs
        tracked = {mutation.output for mutation in outputs.mutations if mutation.tracked}
        tracked.update(item.place for item in outputs.returned if item.kind == "output")
        tracked.update(index for _, kind, index in outputs.roots if kind == "output")
        grad_outputs = programs.expected(tracked)
        self.bridge: Bridge | None = None
        if torch.is_inference_mode_enabled() or not any(grad_outputs):
            in_place = {} if self._runtime is not None else self._destined(tensors)
            self._make_forward = programs.forward(in_place)
            self.forward = self._make_forward()
            return
        ends = [(mutation, prepared.outputs[mutation.output]) for mutation in outputs.mutations]
        mutated = {proxy.name: mutation.input for mutation, proxy in ends if proxy is not None}
        reshaped = reshaped_inputs(outputs, prepared.inputs)
        if any(True for _ in sharing(tensors, reshaped)):
            raise Unsupported(
                "the function gives an argument other sizes or strides in place, and another shares its memory; pass "
                "a clone of one",
                splits=False,  # the parts of a split function save copies as well
            )
        targets = [mutation.input for mutation in outputs.mutations]
        beside = {other for _, other, _ in sharing(tensors, targets)}.union(reshaped)
        hidden = self.captured.hidden
        training = programs.training(grad_outputs, mutated, beside, hidden)
        self._make_forward, self.forward = training.make_forward, training.forward
        if any(proxy.name in mutated for proxy in training.saved):
            self.no_part = "the backward reads a value that it writes to an input; later code may write there unseen"
        elif wakes_functions(training, tensors):
            self.no_part = "a backward of some results would run an autograd.Function before them that eager's does not"
        unseen = {
            proxy.name for one, proxy in ends if (one.hidden or one.has_data) and proxy is not None
        }
        refuse_saved(training.parts.forward, training.saved, unseen)
        self.bridge = Bridge(
            training,
            selection,
            rejit,
            grad_enabled=self.captured.grad_enabled,
            autocast=self._autocast,
            sizes=self.captured.sizes,
        )

    def _destined(self, tensors: Sequence[torch.Tensor]) -> dict[int, int]:
        """Map outputs that are only copied into an input, both unseen by autograd, to the input's index."""
        outputs = self.captured.outputs
        special = any(tensor.is_inference() or internals.is_wrapper(tensor) for tensor in tensors)
        shared = any(isinstance(source, Base) for source in self.captured.sources)
        if outputs.metadata or special or shared:
            return {}
        read = {item.place for item in outputs.returned if item.kind == "output"}
        read.update(index for _, kind, index in outputs.roots if kind == "output")
        mutations = [one for one in outputs.mutations if not one.tracked and one.output not in read]
        return {one.output: one.input for one in mutations}


def give_up(
    this: weakref.ref[Entry], drop: Callable[[], Callable[..., None] | None], fault: str
) -> None:
    """Drop an entry that is still there, for a fault of its backward."""
    entry, dropping = this(), drop()
    if entry is not None and dropping is not None:
        dropping(entry, fault)


def _then(complete: Finisher, after: Finisher) -> Finisher:
    return lambda results, inputs: after(complete(results, inputs), inputs)
