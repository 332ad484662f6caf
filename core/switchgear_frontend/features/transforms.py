"""Transforms of `torch.func` inside: their operators are recorded below functorch, and no composite is kept."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.patches import replaced
from switchgear_core.record.call import Call
from switchgear_core.record.composite import spliced
from switchgear_core.record.handler import PASS, Handler
from switchgear_core.record.recorder import Recorder, active_recorder


class Transforms(Handler):
    """Handler of calls inside a transform, and of calls on the results of a transform."""

    #: Whether the capture began inside a transform.
    _starts_inside = False

    @contextlib.contextmanager
    def around(self) -> Any:
        """Make outside tensors inputs before functorch wraps them; refuse tracing transforms."""
        with (
            replaced(self, "_starts_inside", internals.inside_functorch()),
            internals.functorch_operands(_below_transforms),
            internals.tracers_refused(_refuse_tracer),
        ):
            yield

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Make the call, and record its operators."""
        # the function that `torch.func.vjp` returns reads tensors of its transform after the transform has ended
        transformed = any(map(internals.is_functorch_tensor, tensors_in((call.args, call.kwargs))))
        if not internals.inside_functorch() and not transformed:
            return PASS
        if transformed and self._starts_inside:
            raise Unsupported(
                f"a parameter or closed-over tensor belongs to a torch.func transform that is active around the call, "
                f"in {recorder.here()}: jit the whole, or use sg.grad or sg.vjp"
            )
        args, kwargs = map_tensors(
            lambda tensor: _adopted_below(recorder, tensor), (call.args, call.kwargs)
        )
        assert call.fn is not None
        with spliced(recorder, call):
            return call.fn(*args, **kwargs)


def _adopted_below(recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor:
    if internals.is_functorch_tensor(tensor):
        return tensor
    with internals.outside_functorch():
        return recorder.adopted(tensor)


def _below_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """Return the traced counterpart of a tensor that a transform of `torch.func` is about to wrap."""
    recorder = active_recorder()
    return tensor if recorder is None else _adopted_below(recorder, tensor)


def _refuse_tracer(name: str) -> None:
    raise Unsupported(
        f"torch.func.{name} inside a jitted function, which is traced already; call it outside",
        splits=False,
    )
