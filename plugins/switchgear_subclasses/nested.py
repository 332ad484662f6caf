"""Nested tensors of the jagged layout: a tensor of values, and one of offsets, where each component begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.record.call import Call
from switchgear_core.record.handler import PASS
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.stand_ins import asker
from switchgear_subclasses.shells import jagged
from switchgear_subclasses.torch_private import jagged as internals

_aten = torch.ops.aten
#: Operators by which C code asks a tensor for its sizes, strides and layout; it takes no errors.
METADATA = frozenset(
    {
        *(_aten.is_non_overlapping_and_dense.default, _aten.sym_size.default, _aten.dim.default, _aten.numel.default),
        *(_aten.sym_numel.default, _aten.sym_stride.default, _aten.sym_storage_offset.default),
        *(torch.ops.prim.layout.default, _aten.is_contiguous.default, _aten.is_contiguous.memory_format),
        _aten.sym_is_contiguous.default,
    }
)
def before_inputs(recorder: Recorder, call: Call, stand_in: Callable[[torch.Tensor], Any]) -> Any:
    """Answer a call by which a nested tensor is made of tensors, or return `PASS`.

    Args:
        recorder: the recorder of the capture.
        call: the call.
        stand_in: returns the stand-in for a value.
    """
    if call.fn is torch.Tensor.untyped_storage and asker() == internals.CONSTRUCTOR_FILE:
        # read for the size of the storage, which nothing else depends on
        return torch.Tensor.untyped_storage(recorder.adopted(call.args[0]))
    if call.fn is internals.VIEW_FROM_JAGGED:
        return stand_in(_viewed(recorder, *call.args, **call.kwargs))
    return PASS


def _viewed(
    recorder: Recorder,
    values: torch.Tensor,
    offsets: torch.Tensor,
    dummy: Any,
    lengths: torch.Tensor | None = None,
    ragged_idx: int = 1,
    min_seqlen: torch.Tensor | None = None,
    max_seqlen: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a value: the nested tensor of values and offsets."""
    if lengths is not None:
        raise Unsupported(
            f"a nested tensor with lengths, between which values are left out, is made in {recorder.here()}; "
            "make one without",
            splits=False,
        )
    parts = [None if part is None else recorder.adopted(part) for part in (values, offsets, min_seqlen, max_seqlen)]
    if not torch.is_grad_enabled():
        parts[0] = parts[0].detach()
    return jagged(ragged_idx, *parts)


def answer(recorder: Recorder, call: Call, value_of: Callable[[torch.Tensor], Any]) -> Any:
    """Answer a call with nested tensors, or return `PASS`.

    Args:
        recorder: the recorder of the capture.
        call: the call, with stand-ins.
        value_of: returns the value of a stand-in.
    """
    if call.fn is internals.GET_VALUES or call.fn is _aten._nested_get_values.default:
        values = value_of(call.args[0])._values
        with recorder.reopened():
            return values.view_as(values) if torch.is_grad_enabled() else values.detach()
    return PASS


class _Linear(torch.autograd.Function):
    """`linear` of the values of a nested tensor, with the formula of nested tensors."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(values, weight)
        return torch.nn.functional.linear(values, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        for_values, for_weight, for_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, weight.size(0))
        return (
            torch.matmul(grad, weight) if for_values else None,
            torch.matmul(rows.t(), values.reshape(-1, weight.size(1))) if for_weight else None,
            grad.sum(tuple(range(grad.dim() - 1))) if for_bias else None,
        )


def linear(nested: Any, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return the value of `linear` of a value."""
    return around_values(nested, _Linear.apply(nested._values, weight, bias))


def around_values(nested: Any, values: torch.Tensor) -> torch.Tensor:
    """Return a nested tensor of the same lengths around other values."""
    cached = nested._min_seqlen_tensor, nested._max_seqlen_tensor
    return jagged(nested._ragged_idx, values, nested._offsets, *cached)


def formula(func: Any, args: Any) -> Callable[..., torch.Tensor] | None:
    """Return a function with the gradient of an operator, where it is another one than that of operators on values."""
    is_linear = func is _aten.linear.default and type(args[0]) is internals.NestedTensor
    return linear if is_linear and args[0]._ragged_idx == 1 else None
