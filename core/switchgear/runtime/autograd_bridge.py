"""The bridge into PyTorch's autograd: a compiled forward and backward as one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from switchgear import torch_internals as internals
from switchgear.capture import compiling
from switchgear.custom_functions import made_as_views
from switchgear.errors import Unsupported
from switchgear.evaluation import evaluate
from switchgear.passes.pipeline import Program, Training, compile_backward, differentiable_backward
from switchgear.proxy import TensorProxy
from switchgear.rules import Grads
from switchgear.selection import Selection
from switchgear.symbol import DEL, proxies
from switchgear.trace import Trace

from .execution import run_program

Jit = Callable[[Callable[..., Any]], Callable[..., Any]]


class Bridge:
    """Runs the forward of an entry under autograd, and its backwards, made on first use as grad outputs need them.

    `rejit` compiles a backward that is to be differentiated in its turn, as any other function.
    """

    def __init__(self, training: Training, selection: Selection, rejit: Jit) -> None:
        self.training = training
        self.selection = selection
        self.rejit = rejit
        self.count = training.joint.count
        self.inner = tuple(self.count + index for index in training.inner)
        outputs = training.ends[: self.count]
        self.plain = tuple(i for i, proxy in enumerate(outputs) if proxy is None or not proxy.requires_grad)
        views = made_as_views(training.prepared.bound_symbols)
        self.views = tuple(i for i, p in enumerate(outputs) if p is not None and p.requires_grad and p.name in views)
        given = {proxy.name for proxy in training.prepared.inputs}
        ends = (*outputs, *training.saved)
        self.made = tuple(i for i, proxy in enumerate(ends) if proxy is not None and proxy.name not in given)
        expected = [None if p is None else (p.stride, p.dtype, False, False) for p in training.joint.grad_outputs]
        wanted = tuple(proxy.requires_grad for proxy in training.prepared.inputs)
        nothing = (None,) * len(self.inner)
        self._backwards: dict[Any, Program] = {(*expected, *nothing, wanted, ()): training.backward}
        self._differentiable: dict[Any, tuple[Callable[..., Any], Trace]] = {}
        self.last_backward: Program = training.backward

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The trace's outputs, connected to autograd."""
        with torch.enable_grad():
            results: list[torch.Tensor] = [*_Node.apply(self, *inputs)]  # type: ignore[no-untyped-call]
            for index in self.views:
                if not results[index]._is_view():
                    results[index] = _View.apply(results[index])  # type: ignore[no-untyped-call]
        return results

    def backward_for(self, grads: tuple[torch.Tensor | None, ...], wanted: tuple[bool, ...]) -> Program:
        """The backward that takes these grad outputs, and gives the gradients of the inputs that are wanted."""
        key = _pattern(grads, wanted)
        program = self._backwards.get(key)
        if program is None:
            with compiling(), torch.no_grad():
                program = compile_backward(self.training, self.selection, self._proxies(grads), wanted)
            self._backwards[key] = program
        self.last_backward = program
        return program

    def differentiable_for(
        self, grads: tuple[torch.Tensor | None, ...], wanted: tuple[bool, ...]
    ) -> Callable[..., Any]:
        """The same as a function of what is saved and the grad outputs, for `create_graph=True`."""
        key = _pattern(grads, wanted)
        found = self._differentiable.get(key)
        if found is None:
            with compiling(), torch.no_grad():
                trace = differentiable_backward(self.training, self.selection, self._proxies(grads), wanted)
            found = self._differentiable[key] = self.rejit(_evaluated(trace)), trace
        return found[0]

    def unread(self, grads: tuple[torch.Tensor | None, ...], wanted: tuple[bool, ...]) -> frozenset[int]:
        """The positions of the saved values that are not read by the backward for these grad outputs."""
        if torch.is_grad_enabled():
            self.differentiable_for(grads, wanted)
            trace = self._differentiable[_pattern(grads, wanted)][1]
        else:
            trace = self.backward_for(grads, wanted).stages[-1]
        lines = [item for item in trace.bound_symbols if item.symbol != DEL]
        read = {proxy.name for proxy in proxies((trace.outputs, [item.inputs for item in lines]))}
        saved = trace.inputs[: len(self.training.saved)]
        return frozenset(index for index, proxy in enumerate(saved) if proxy.name not in read)

    def _proxies(self, grads: tuple[torch.Tensor | None, ...]) -> Grads:
        return tuple(
            None
            if proxy is None or grad is None
            else replace(
                proxy,
                name=f"g_{proxy.name}",
                stride=grad.stride(),
                dtype=grad.dtype,
                is_conj=grad.is_conj(),
                is_neg=grad.is_neg(),
                requires_grad=False,
                storage_offset=0,
            )
            for proxy, grad in zip(self.training.ends, grads, strict=True)
        )


def _pattern(grads: tuple[torch.Tensor | None, ...], wanted: tuple[bool, ...]) -> Any:
    pattern = [None if g is None else (g.stride(), g.dtype, g.is_conj(), g.is_neg()) for g in grads]
    return (*pattern, wanted, internals.autocast_key())


def _evaluated(trace: Trace) -> Callable[..., Any]:
    def backward(*arguments: Any) -> Any:
        values = {proxy.name: value for proxy, value in zip(trace.inputs, arguments, strict=True)}
        values.update(trace.constants)
        evaluate(trace.bound_symbols, values)
        return tuple(None if proxy is None else values[proxy.name] for proxy in trace.outputs)

    return backward


class _View(torch.autograd.Function):
    """What a Function of the user's gives as a view, for autograd forbids to write to it."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor) -> torch.Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad


def _strided(grad: torch.Tensor | None, output: TensorProxy | None) -> torch.Tensor | None:
    """A grad output in the layout that the backward takes; that of a sparse output is one too."""
    if grad is None or grad.layout is torch.strided:
        return grad
    # PyTorch says so of what is not strided
    if output is None or any(output.stride):
        raise Unsupported("a grad output is not a strided tensor")
    return grad.to_dense()


class _Node(torch.autograd.Function):
    """Its outputs are those of the trace, and the saved values through which a second derivative flows."""

    @staticmethod
    def forward(ctx: Any, bridge: Bridge, *inputs: torch.Tensor) -> Any:
        results = list(run_program(bridge.training.forward, inputs))
        own = {internals.storage_key(tensor) for tensor in inputs}
        for index in bridge.made:
            # autograd forbids to write to what comes out of a node as a view; of an input it is one in eager too
            if results[index]._is_view() and internals.storage_key(results[index]) not in own:
                results[index] = results[index].detach()
        outputs = results[: bridge.count]
        ctx.bridge = bridge
        ctx.unwatched = frozenset()
        ctx.save_for_backward(*results[bridge.count :])
        ctx.mark_non_differentiable(*[outputs[i] for i in bridge.plain if outputs[i] is not None])
        ctx.set_materialize_grads(False)
        held = {"input": inputs, "output": outputs}
        # not saved, for it may change before the backward writes to it; and without its history, which may lead here
        places = [place for place in bridge.training.backward.targets if place[0] in held]
        ctx.written = {(kind, index): held[kind][index].detach() for kind, index in places}
        return (*outputs, *[results[index] for index in bridge.inner])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if any(grad is not None and grad.layout is not torch.strided for grad in grads):
            grads = tuple([_strided(*pair) for pair in zip(grads, ctx.bridge.training.ends, strict=True)])
        given = [grad for grad in grads if grad is not None]
        wanted = ctx.needs_input_grad[1:]
        arguments = [*_saved(ctx, grads, wanted), *given]
        internals.clear_saved_tensors(ctx)
        if torch.is_grad_enabled():
            return (None, *ctx.bridge.differentiable_for(grads, wanted)(*arguments))
        program = ctx.bridge.backward_for(grads, wanted)
        found = run_program(program, arguments)
        for (kind, index), value in zip(program.targets, found[len(wanted) :], strict=True):
            target = grads[index] if kind == "grad" else ctx.written[kind, index]
            target.copy_(value)
        return (None, *found[: len(wanted)])


def _saved(ctx: Any, grads: tuple[torch.Tensor | None, ...], wanted: tuple[bool, ...]) -> tuple[torch.Tensor, ...]:
    """The saved values; that one was overwritten since is an error only of a backward that reads it, as in eager."""
    if ctx.unwatched and not ctx.unwatched <= ctx.bridge.unread(grads, wanted):
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been {_OVERWRITTEN} since; an earlier backward "
            "of this graph did not need it"
        )
    try:
        return ctx.saved_tensors  # type: ignore[no-any-return]
    except RuntimeError as error:
        unread = ctx.bridge.unread(grads, wanted) if _OVERWRITTEN in str(error) else ()
        if not unread:
            raise
        internals.unwatch_saved_tensors(ctx, unread)
        ctx.unwatched = unread
        return ctx.saved_tensors  # type: ignore[no-any-return]


_OVERWRITTEN = "modified by an inplace operation"
