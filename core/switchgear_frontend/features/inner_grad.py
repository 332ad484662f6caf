"""`torch.autograd.grad` inside a jitted function.

PyTorch's own call, on the wrappers and unrecorded, tells the existing gradients, their layouts, and the errors that
eager raises. With `create_graph`, and inside transforms of `torch.func`, PyTorch's backward itself is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.nesting import map_tensors
from switchgear_core.record.call import Call
from switchgear_core.record.gradients_inside import AUTOGRAD_GRAD
from switchgear_core.record.handler import Handler
from switchgear_core.record.recorder import Recorder


class InnerGrad(Handler):
    """Handler of `torch.autograd.grad`: a call becomes one symbol, differentiated by the rules of the grad pass."""

    functions = frozenset({torch.autograd.grad})

    def answer(self, recorder: Recorder, call: Call) -> object:
        """Return the gradients."""
        assert call.fn is not None
        _refuse_outside_history(recorder, *call.args)
        if recorder.tracker.writes.hidden:
            raise Unsupported(
                "the function writes through .data before it calls torch.autograd.grad, in "
                f"{recorder.here()}: autograd may have saved the value before; write under torch.no_grad()"
            )
        if call.kwargs["create_graph"] or call.kwargs["is_grads_batched"]:
            return recorder.track_outputs(call.fn(*call.args, **call.kwargs))
        return _record_call(recorder, call.fn, *call.args, **call.kwargs)


def _record_call(
    recorder: Recorder,
    func: Callable[..., Any],
    outputs: Any,
    inputs: Any,
    *,
    materialize_grads: bool,
    **options: Any,
) -> Any:
    vectors = options.pop("grad_outputs")
    vectors = (vectors,) if isinstance(vectors, torch.Tensor) or vectors is None else tuple(vectors)
    vectors += (None,) * (len(outputs) - len(vectors) if vectors == (None,) else 0)
    tracker = recorder.tracker
    tracker.settle()
    operands = map_tensors(tracker.proxy_of, (outputs, inputs, vectors))
    with recorder.paused():
        # detached: a grad output that the engine passes through is a separate tensor in the trace
        detached_grads = map_tensors(torch.Tensor.detach, vectors)
        grads = func(outputs, inputs, grad_outputs=detached_grads, **options)
    proxies: list[TensorProxy | None] = []
    for index, grad in enumerate(grads):
        is_repeated = any(grad is earlier for earlier in grads[:index])
        proxies.append(None if grad is None or is_repeated else _new_gradient(recorder, grad))
    recorder.record(AUTOGRAD_GRAD, operands, tuple(proxies))
    if materialize_grads:
        pairs = zip(grads, inputs, strict=True)
        grads = tuple([torch.zeros_like(item) if grad is None else grad for grad, item in pairs])
    return recorder.track_outputs(grads)


def _new_gradient(recorder: Recorder, wrapper: torch.Tensor) -> TensorProxy:
    """Return the proxy of a gradient that PyTorch computed unrecorded."""
    if not internals.is_wrapper(wrapper):
        raise Unsupported(f"a gradient that is no strided tensor, in {recorder.here()}")
    fake = internals.unwrap(wrapper)
    if fake in recorder.values:
        with recorder.paused(), internals.outside_autograd():
            fake = fake.detach()
        internals.rebind(wrapper, fake, aliases=False)
    return recorder.values.define(fake, False)


def _refuse_outside_history(recorder: Recorder, outputs: Any, inputs: Any) -> None:
    """Refuse a gradient that may flow outside the trace, through the history of another input."""
    recorder.matters.leaves = True
    if not all(isinstance(value, torch.Tensor) for value in (*outputs, *inputs)):
        raise Unsupported(
            f"torch.autograd.grad for a graph edge, in {recorder.here()}; pass tensors"
        )
    for tensor in inputs:
        entry = recorder.input_of(tensor)
        for other in recorder.inputs if entry is not None else ():
            if other is not entry and other.proxy.requires_grad and not other.tensor.is_leaf:
                raise Unsupported(
                    f"torch.autograd.grad with respect to an input, in {recorder.here()}, while another input "
                    f"({other.proxy.name}) was computed outside the jitted function: it may depend on the first; "
                    "compute it inside, or detach it"
                )
