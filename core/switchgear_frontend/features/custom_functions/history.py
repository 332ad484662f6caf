"""The history of a Function's results: a single symbol, whose gradient is the class's own backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, RuleOrigin, Symbol
from switchgear_core.ir.writes import IDENTITY
from switchgear_core.record.doors import Doors
from switchgear_core.record.recorder import Recorder, active_recorder
from switchgear_core.registry.rules import Applied
from switchgear_frontend.features.custom_functions.backward import held_by, pullback
from switchgear_frontend.features.custom_functions.call import FunctionCall


class Linked(torch.autograd.Function):
    """A Function that links results to arguments for autograd."""

    @staticmethod
    def forward(ctx: object, count: int, *tensors: torch.Tensor) -> Any:
        """Return the results unchanged."""
        return tensors[:count]


def value_of(recorder: Recorder, tensor: torch.Tensor) -> TensorProxy:
    """Return the value that a tensor stands for, without regard to autograd."""
    return recorder.values.proxy_of(recorder.tracker.fake_of(tensor))


def record_history(
    recorder: Recorder,
    call: FunctionCall,
    inputs: Sequence[TensorProxy],
    results: Sequence[torch.Tensor],
    saved: Sequence[object],
    *,
    aliases: bool,
) -> None:
    """Record `HISTORY`, and rebind the results, and `aliases` of them, to its outputs."""
    values = tuple([value_of(recorder, result) for result in results])
    tensors = tuple(
        [value_of(recorder, leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in saved]
    )
    outputs = []
    for result in results:
        with recorder.paused(), internals.outside_autograd():
            fake = internals.unwrap(result).detach()
        outputs.append(recorder.values.define(fake, result.requires_grad))
        recorder.tracker.rebind(result, fake, aliases=aliases)
    recorder.record(HISTORY, (call, tuple(inputs), values, tensors), tuple(outputs))
    for result in results:
        recorder.tracker.reconcile(result)


def _history(
    call: FunctionCall,
    inputs: tuple[torch.Tensor, ...],
    values: tuple[torch.Tensor, ...],
    saved: tuple[object, ...],
) -> tuple[torch.Tensor, ...]:
    """Return the values; while recording, attach a newly recorded history."""
    recorder = active_recorder()
    if recorder is None:
        return values
    results: tuple[torch.Tensor, ...] = Linked.apply(
        len(values), *[value.detach() for value in values], *inputs
    )  # type: ignore[no-untyped-call]
    arguments = {id(tensor) for tensor in inputs}
    # intermediates of the forward are constant when the backward is differentiated
    saved = tuple(
        k.detach() if isinstance(k, torch.Tensor) and id(k) not in arguments else k for k in saved
    )
    with internals.DisableTorchFunction():
        record_history(
            recorder,
            call,
            [recorder.tracker.proxy_of(tensor) for tensor in inputs],
            results,
            saved,
            aliases=False,
        )
    return results


class _Gradient:
    """The gradient of `HISTORY`, an `OwnGradient`: the class's own backward."""

    def origin(self, item: BoundSymbol) -> RuleOrigin:
        return RuleOrigin(item.args[0].function.__qualname__, "autograd.Function")

    def saved(self, item: BoundSymbol) -> tuple[TensorProxy, ...]:
        return tuple([value for value in held_by(item) if isinstance(value, TensorProxy)])

    def constant(self, item: BoundSymbol) -> tuple[BoundSymbol, ...]:
        pairs = zip(item.args[2], item.outputs, strict=True)
        return tuple(
            BoundSymbol(IDENTITY, (value,), {}, out, source=item.source) for value, out in pairs
        )

    def linearise(self, item: BoundSymbol, doors: Doors, higher_order: bool) -> Applied:
        forward = (item,) if higher_order else self.constant(item)
        return Applied(forward, item.outputs, pullback(item, doors, higher_order))


HISTORY = Symbol("switchgear.autograd_function", _history, gradient=_Gradient())
