"""The bridge into PyTorch's autograd: a compiled forward and backward as one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from switchgear import torch_internals as internals
from switchgear.capture import compiling
from switchgear.errors import NotDifferentiable, Unsupported
from switchgear.passes.pipeline import Program, Training, compile_backward
from switchgear.selection import Selection

from .execution import run_program


class Bridge:
    """Runs the forward of an entry under autograd, and its backwards, made on first use as grad outputs need them."""

    def __init__(self, training: Training, selection: Selection) -> None:
        self.training = training
        self.selection = selection
        self.count = training.joint.count
        outputs = training.joint.trace.outputs[: self.count]
        self.plain = tuple(i for i, proxy in enumerate(outputs) if proxy is None or not proxy.requires_grad)
        expected = [None if p is None else (p.stride, p.dtype, False, False) for p in training.joint.grad_outputs]
        wanted = tuple(proxy.requires_grad for proxy in training.prepared.inputs)
        self._backwards: dict[Any, Program] = {(*expected, wanted, ()): training.backward}
        self.last_backward: Program = training.backward

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The trace's outputs, connected to autograd."""
        with torch.enable_grad():
            results: Sequence[torch.Tensor] = _Node.apply(self, *inputs)  # type: ignore[no-untyped-call]
        return results

    def backward_for(self, grads: tuple[torch.Tensor | None, ...], wanted: tuple[bool, ...]) -> Program:
        """The backward that takes these grad outputs, and gives the gradients of the inputs that are wanted."""
        pattern = [None if g is None else (g.stride(), g.dtype, g.is_conj(), g.is_neg()) for g in grads]
        key = (*pattern, wanted, internals.autocast_key())
        program = self._backwards.get(key)
        if program is None:
            pairs = zip(self.training.joint.grad_outputs, grads, strict=True)
            proxies = tuple(
                None
                if proxy is None or g is None
                else replace(proxy, stride=g.stride(), dtype=g.dtype, is_conj=g.is_conj(), is_neg=g.is_neg())
                for proxy, g in pairs
            )
            with compiling(), torch.no_grad():
                program = compile_backward(self.training, self.selection, proxies, wanted)
            self._backwards[key] = program
        self.last_backward = program
        return program


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bridge: Bridge, *inputs: torch.Tensor) -> Any:
        results = run_program(bridge.training.forward, inputs)
        outputs = results[: bridge.count]
        ctx.bridge = bridge
        ctx.save_for_backward(*results[bridge.count :])
        ctx.mark_non_differentiable(*[outputs[i] for i in bridge.plain if outputs[i] is not None])
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise NotDifferentiable(
                "create_graph=True: the backward of a jitted function is not differentiable by itself; use nested "
                "sg.grad, or run this part without sg.jit"
            )
        given = [grad for grad in grads if grad is not None]
        if any(grad.layout is not torch.strided for grad in given):
            raise Unsupported("a grad output is not a strided tensor")
        arguments = [*ctx.saved_tensors, *given]
        internals.clear_saved_tensors(ctx)
        return (None, *run_program(ctx.bridge.backward_for(grads, ctx.needs_input_grad[1:]), arguments))
