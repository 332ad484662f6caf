"""Nested tensors of the jagged layout: a tensor of values, and one of offsets, where each component begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.record.call import Call
from switchgear_core.record.guards import Guard
from switchgear_core.record.handler import PASS
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.stand_ins import asker
from switchgear_subclasses.attention import jagged_attention
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


def note_lengths(recorder: Recorder, places: list[int], parts: Sequence[torch.Tensor]) -> None:
    """Give the offsets of a stand-in the size of the ragged dimension of the tensor from outside.

    Args:
        recorder: the recorder of the capture.
        places: the positions of offsets among the inputs; gets that of these.
        parts: the inner tensors.
    """
    entry = recorder.inputs.of(parts[1])
    if entry is not None:
        internals.share_size(parts[1], entry.tensor)
        place = recorder.inputs.index(entry)
        if place not in places:
            places.append(place)


def guard_on_lengths(recorder: Recorder, places: Sequence[int]) -> Guard:
    """Return the guard on which of several nested tensors from outside have equal sizes."""
    expected = internals.equal_sizes([recorder.inputs[place].tensor for place in places])

    def fits(inputs: Sequence[torch.Tensor]) -> bool:
        return internals.equal_sizes([inputs[place] for place in places]) == expected

    return Guard("lengths(inputs)", "which nested tensors have equal sizes", {"lengths": fits})


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
    values = recorder.adopted(values)
    cached = [None if part is None else recorder.adopted(part) for part in (min_seqlen, max_seqlen)]
    if not torch.is_grad_enabled():
        values = values.detach()
    return jagged(ragged_idx, values, recorder.adopted(offsets), *cached)


def answer(recorder: Recorder, call: Call, value_of: Callable[[torch.Tensor], Any], backends: object) -> Any:
    """Answer a call with nested tensors, or return `PASS`.

    Args:
        recorder: the recorder of the capture.
        call: the call, with stand-ins.
        value_of: returns the value of a stand-in.
        backends: the settings of attention around the jitted function.
    """
    if call.fn is internals.GET_VALUES:
        values = value_of(call.args[0])._values
        with recorder.reopened():
            return values.view_as(values) if torch.is_grad_enabled() else values.detach()
    if call.fn is internals.ATTENTION:
        with recorder.reopened():
            return _attended(recorder, backends, *call.args, **call.kwargs)
    return PASS


def _attended(
    recorder: Recorder,
    backends: object,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: object = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return the attention of stand-ins, by one operator; `PASS` where PyTorch's function has none of its own."""
    tensors = query, key, value
    if attn_mask is not None or {(tensor.dim(), tensor.dtype) for tensor in tensors} != {(4, query.dtype)}:
        return PASS
    if any(getattr(tensor, "_ragged_idx", 0) != 2 for tensor in tensors):
        return PASS
    is_cast = torch.is_autocast_enabled(query.device.type)
    if is_cast or internals.attention_backends() != backends:
        reason = "autocast" if is_cast else "settings of its backends that the function itself changes"
        raise Unsupported(f"attention of nested tensors under {reason}, in {recorder.here()}", splits=False)
    needs_grad = [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
    dense = [tensor.transpose(1, 2).values().contiguous() for tensor in tensors]
    layouts = [part for tensor in tensors for part in layout_of(tensor)]
    options = float(dropout_p), bool(is_causal), scale, bool(enable_gqa), needs_grad
    result = jagged_attention(*dense, layouts, *options)[0]
    offsets, *cached = layout_of(query)
    return internals.VIEW_FROM_JAGGED(result, offsets, query, None, 1, *cached).transpose(1, 2)


def layout_of(nested: Any) -> tuple[Any, ...]:
    """Return the offsets and the cached lengths of a nested tensor."""
    return nested._offsets, nested._min_seqlen_tensor, nested._max_seqlen_tensor


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


def _linear(nested: Any, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return the value of `linear` of a value."""
    values = _Linear.apply(nested._values, weight, bias)  # type: ignore[no-untyped-call]
    return jagged(nested._ragged_idx, values, *layout_of(nested))


class _Total(torch.autograd.Function):
    """The sum or the mean of the values of a nested tensor, with the formula of nested tensors."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, is_mean: bool) -> torch.Tensor:
        ctx.save_for_backward(values)
        ctx.is_mean = is_mean
        return values.mean() if is_mean else values.sum()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (values,) = ctx.saved_tensors
        spread = torch.ones_like(values) * grad
        return spread / values.numel() if ctx.is_mean else spread, None


class _Padded(torch.autograd.Function):
    """Rows of values as a dense tensor [batch, length, features], with the formula of nested tensors."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, offsets: torch.Tensor, length: int, padding: float) -> torch.Tensor:
        ctx.save_for_backward(values, offsets)
        return _aten._jagged_to_padded_dense_forward(values, [offsets], [length], padding)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, offsets = ctx.saved_tensors
        return _aten._padded_dense_to_jagged_forward(grad, [offsets], values.size(0)), None, None, None


def _padded(nested: Any, padding: float, output_size: Sequence[int] | None = None) -> torch.Tensor:
    values, longest = nested._values, nested._max_seqlen_tensor
    length = values.size(0) if longest is None else longest.size(0)
    if output_size is not None:
        length = output_size[1]
    rows = values.reshape(values.size(0), -1)
    padded: torch.Tensor = _Padded.apply(rows, nested._offsets, length, padding)  # type: ignore[no-untyped-call]
    return padded.reshape(*padded.shape[:2], *values.shape[1:])


def refuse_copied_offsets(args: Sequence[Any], results: Sequence[Any], here: Callable[[], str]) -> None:
    """Refuse results with copies of offsets, which PyTorch notes to have equal sizes, unlike those of a trace."""
    own, new = ([t._offsets for t in tensors if type(t) is internals.NestedTensor] for tensors in (args, results))
    copies = [offsets for offsets in new if all(offsets is not one for one in own)]
    places = internals.equal_sizes([*own, *copies])
    if any(place < len(own) for place in places[len(own) :]):
        raise Unsupported(
            f"a nested tensor gets a copy of its offsets, in {here()}, as on another device; move it outside of the "
            "function",
            splits=False,
        )


def formula(func: Any, args: Any, kwargs: Any) -> Callable[..., Any] | None:
    """Return a function that runs an operator with its gradient, where formulas do not tell that it is this one."""
    if type(args[0]) is not internals.NestedTensor or kwargs:
        return None
    if func is _aten.sum.default or func is _aten.mean.default:
        return lambda nested: _Total.apply(nested._values, func is _aten.mean.default)  # type: ignore[no-untyped-call]
    if func is _aten.linear.default and args[0]._ragged_idx == 1 and args[0]._values.dim() > 1:
        return _linear
    if func is _aten.to_padded_tensor.default and args[0]._ragged_idx == 1:
        return _padded
    if func is _aten.chunk.default and args[0]._values.is_contiguous():
        # the formula writes the gradients of the chunks into zeros
        return lambda *tensors: internals.NestedTensor.__torch_dispatch__(func, (), tensors)
    return None
