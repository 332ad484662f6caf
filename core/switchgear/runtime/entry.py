"""An entry: one compiled specialisation of a jitted function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from switchgear import torch_internals as internals
from switchgear.capture import capture, compiling
from switchgear.errors import InvalidInput
from switchgear.passes.pipeline import Program, compile_forward, compile_training, expected_grad, prepare
from switchgear.selection import Selection
from switchgear.shared_memory import sharing
from switchgear.signature import Argument, Base, Closure, InputSource
from switchgear.structure import Structure

from .autograd_bridge import Bridge, Jit
from .epilogue import finish
from .execution import run_program
from .prologue import make_prologue

_AS_IT_IS = contextlib.nullcontext()


class Entry:
    """A captured call, compiled; `prologue` says whether it fits another call, `run` runs it."""

    def __init__(
        self,
        function: Callable[..., Any],
        leaves: list[Any],
        spec: Structure,
        module: torch.nn.Module | None,
        selection: Selection,
        rejit: Jit,
        reads_inputs: bool = False,
    ) -> None:
        with compiling():
            captured = self.captured = capture(function, leaves, spec, module, reads_inputs=reads_inputs)
            tensors = [tensor_of(source, leaves) for source in captured.sources]
            with torch.no_grad(), internals.autocast_off():
                self._compile(tensors, selection, rejit)
        self.prologue = make_prologue(captured, leaves, spec, tensors)
        self._hides_autograd = captured.grad_enabled and any(proxy.requires_grad for proxy in captured.trace.inputs)
        outputs = captured.outputs
        touched = outputs.mutations or outputs.metadata
        self._returns_first = not touched and outputs.spec.is_leaf and outputs.returned[0].kind == "output"

    def run(self, inputs: Sequence[torch.Tensor]) -> Any:
        """What the function returns for these inputs, as `prologue` gives them."""
        for index in self.captured.outputs.switched_on:
            inputs[index].requires_grad_()
        if self.bridge is not None:
            outputs = self.bridge(inputs)
        else:
            with torch.no_grad() if self._hides_autograd else _AS_IT_IS:
                outputs = run_program(self.forward, inputs)
            if any(output is not None and output._is_view() for output in outputs):
                return finish(self.captured.outputs, [o if o is None else o.detach() for o in outputs], inputs)
        return outputs[0] if self._returns_first else finish(self.captured.outputs, outputs, inputs)

    def _compile(self, tensors: Sequence[torch.Tensor], selection: Selection, rejit: Jit) -> None:
        trace = self.captured.trace
        stages, choices = prepare(trace, selection)
        outputs = self.captured.outputs
        tracked = {mutation.output for mutation in outputs.mutations if mutation.tracked}
        tracked.update(item.place for item in outputs.returned if item.kind == "output")
        tracked.update(index for _, kind, index in outputs.roots if kind == "output")
        grad_outputs = tuple(
            expected_grad(proxy) if proxy is not None and index in tracked else None
            for index, proxy in enumerate(stages[-1].outputs)
        )
        self.bridge: Bridge | None = None
        if torch.is_inference_mode_enabled() or not any(grad_outputs):
            self.forward: Program = compile_forward(stages, selection, choices)
            return
        ends = [(mutation, stages[-1].outputs[mutation.output]) for mutation in outputs.mutations]
        mutated = {proxy.name: mutation.input for mutation, proxy in ends if proxy is not None}
        # in the memory of one that is written to they have the same version counter
        beside = {other for _, other, _ in sharing(tensors, [mutation.input for mutation in outputs.mutations])}
        training = compile_training(stages, selection, grad_outputs, mutated, beside, choices)
        self.forward = training.forward
        self.bridge = Bridge(training, selection, rejit)


def tensor_of(source: InputSource, leaves: list[Any]) -> torch.Tensor:
    """The tensor that an input of a trace stands for, by the flattened arguments of the call."""
    if isinstance(source, Argument):
        return leaves[source.index]  # type: ignore[no-any-return]
    if isinstance(source, Base):
        return source.find(tensor_of(source.of, leaves))
    tensor = source.tensor if isinstance(source, Closure) else source.fetch()
    if tensor is None:
        raise InvalidInput(f"{source} vanished from its module while it was captured")
    return tensor
