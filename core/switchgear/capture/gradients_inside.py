"""`torch.autograd.grad` inside a jitted function: one symbol, which a pass differentiates by the rules for all else.

PyTorch's own call, on the wrappers and unrecorded, says which gradients there are and in which layout, and raises
what eager raises. With `create_graph`, and inside transforms of `torch.func`, PyTorch's backward itself is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from switchgear.errors import SwitchgearError, Unsupported
from switchgear.ir.symbol import Symbol
from switchgear.nesting import map_tensors

if TYPE_CHECKING:
    from switchgear.capture.recorder import Recorder
    from switchgear.ir.proxy import TensorProxy


def _unreplaced(*args: Any) -> Any:
    raise SwitchgearError(
        "torch.autograd.grad in a trace was not replaced by its gradients; please report this"
    )


def new_leaf(value: torch.Tensor) -> torch.Tensor:
    """The value of a tensor made inside whose history begins here: `requires_grad_()`."""
    return value


#: `(outputs, inputs, grad_outputs or None each) -> gradients`; nothing flows back through it.
AUTOGRAD_GRAD = Symbol("torch.autograd.grad", _unreplaced)
NEW_LEAF = Symbol("switchgear.new_leaf", new_leaf)


def record_gradients(
    recorder: Recorder, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Handle a call of `torch.autograd.grad`, its tensors adopted; what the call returns."""
    _refuse_outside_history(recorder, *args)
    recorder.refuse_hidden_writes()
    if kwargs["create_graph"] or kwargs["is_grads_batched"]:
        return recorder.track_outputs(func(*args, **kwargs))
    return _record_call(recorder, func, *args, **kwargs)


def _record_call(
    recorder: Recorder,
    func: Callable[..., Any],
    outputs: Any,
    inputs: Any,
    *,
    materialize_grads: bool,
    **options: Any,
) -> Any:
    given = options.pop("grad_outputs")
    given = (given,) if isinstance(given, torch.Tensor) or given is None else tuple(given)
    given += (None,) * (len(outputs) - len(given) if given == (None,) else 0)
    tracker = recorder.tracker
    tracker.settle()
    asked = map_tensors(tracker.proxy_of, (outputs, inputs, given))
    with recorder.paused():
        # detached, for what the engine hands through is a tensor of its own in the trace
        cotangents = map_tensors(torch.Tensor.detach, given)
        found = func(outputs, inputs, grad_outputs=cotangents, **options)
    made: list[TensorProxy | None] = []
    for index, grad in enumerate(found):
        again = any(grad is earlier for earlier in found[:index])
        made.append(None if grad is None or again else tracker.new_gradient(grad))
    recorder.record(AUTOGRAD_GRAD, asked, tuple(made))
    if materialize_grads:
        pairs = zip(found, inputs, strict=True)
        found = tuple(
            [torch.zeros_like(tensor) if grad is None else grad for grad, tensor in pairs]
        )
    return recorder.track_outputs(found)


def _refuse_outside_history(recorder: Recorder, outputs: Any, inputs: Any) -> None:
    """Gradients of a tensor from outside might flow past the trace, through the history of another one."""
    recorder.leaves_matter = True
    if not all(isinstance(value, torch.Tensor) for value in (*outputs, *inputs)):
        raise Unsupported(
            f"torch.autograd.grad for a graph edge, in {recorder.here()}; pass tensors"
        )
    for tensor in inputs:
        found = recorder.input_of(tensor)
        for other in recorder.inputs if found is not None else ():
            if other is not found and other.proxy.requires_grad and not other.tensor.is_leaf:
                raise Unsupported(
                    f"torch.autograd.grad with respect to an input, in {recorder.here()}, while another input "
                    f"({other.proxy.name}) was computed outside the jitted function: it may depend on the first; "
                    "compute it inside, or detach it"
                )
