"""Refused writes: functionalization would copy them back to a base inexactly or in another order than eager, or
backward code writes to its arguments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.ir.aliasing import in_place_twin
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.nesting import tensors_in
from switchgear_core.record.shared_memory import overlap_in_part, overlaps_itself
from switchgear_core.record.tracker import Tracker, is_transposed
from switchgear_core.torch_private import storage_key

_aten = torch.ops.aten
#: Operators that copy a write through a view back to its base.
INVERSES = (
    _aten.slice_scatter.default,
    _aten.select_scatter.default,
    _aten.diagonal_scatter.default,
)


def is_in_place(name: str) -> bool:
    """Check whether a torch-level function of the given name writes to its first argument."""
    if name.endswith("__"):
        return name.startswith("__i") or name == "__setitem__"
    return name.endswith("_") and name != "requires_grad_"


def refuse_expanded(target: torch.Tensor, here: Callable[[], str]) -> None:
    """Refuse a written tensor with several elements at a common address, as after `expand()`.

    Eager refuses most such writes, and functionalization sums the elements.
    """
    repeated = [
        step == 0 and size > 1 for size, step in zip(target.shape, target.stride(), strict=True)
    ]
    if any(repeated) and 0 not in target.shape:
        _refuse("through a view made by expand()", here)


def refuse_detached(operands: object, here: Callable[[], str]) -> None:
    """Refuse writing a tensor that requires grad to a result of `.data` or `detach()`: eager reads its grad there."""
    if any(operand.requires_grad for operand in tensors_in(operands)):
        _refuse("of a tensor that requires grad through .data or detach()", here)


def refuse_transposed(
    target: torch.Tensor, operands: object, index: object, is_seen: bool, here: Callable[[], str]
) -> None:
    """Refuse a write of or to a tensor that requires grad through a transposed view, `target[index]`.

    `is_seen`: autograd sees the write. Autograd passes on a contiguous gradient, functionalization one in the order of
    the view: sums round differently.
    """
    places = index if isinstance(index, tuple) else (index,)
    rank = target.dim() - sum(isinstance(place, int) for place in places)
    base = target._base
    if rank < 2 or base is None or not (is_transposed(target) or is_transposed(base)):
        return
    is_turned = is_transposed(target) and (not is_transposed(base) or target.dim() > base.dim())
    if (is_seen and target.requires_grad and is_turned) or any(
        operand.requires_grad for operand in tensors_in(operands)
    ):
        _refuse("of or to a tensor that requires grad through a transposed view", here)


def refuse_write(
    func: Any,
    args: tuple[Any, ...],
    out: torch.Tensor | None,
    is_new: Callable[[torch.Tensor], bool],
    differentiable: bool,
    here: Callable[[], str],
) -> None:
    """Refuse an overload dispatched by a call that writes to its first argument, or to `out`.

    `is_new` tells whether the call created a fake, `differentiable` whether an argument requires grad.
    """
    if func is _aten.unfold_backward.default:
        _refuse("through a view made by unfold()", here)
    if (
        func is _aten.as_strided_scatter.default
        and (
            differentiable
            or not args[0].is_contiguous()  # PyTorch 2.13 needs the copy if the base requires grad
            or overlaps_itself(args[0].as_strided(*args[2:]))
        )
    ):
        _refuse("through a view made by as_strided()", here)
    # the base would get the value `base + sum_to(written - base)`, which is rounded
    if (
        func is _aten.sub.Tensor
        and isinstance(args[1], torch.Tensor)
        and is_new(args[0])
        # the base is new, too, if it is a recreated view
        and not (is_new(args[1]) and args[0].shape == args[1].shape)
    ):
        _refuse("through a view made by expand()", here)
    if func in INVERSES:
        return
    target = out if out is not None else next(tensors_in(args), None)
    memory = [storage_key(tensor) for tensor in tensors_in(args)]
    # `x[0] += y` ends in a copy of a view to itself
    reads = (
        func is not _aten.copy.default
        and target is not None
        and memory.count(storage_key(target)) > 1
    )
    if differentiable and reads:
        _refuse("to a tensor that requires grad and is read by the same call", here)
    for tensor in tensors_in(args):
        if (
            target is not None
            and tensor is not target  # its address may be symbolic
            and storage_key(tensor) == storage_key(target)
            and overlap_in_part(tensor, target)
        ):
            _refuse("to a tensor whose memory overlaps that of another argument in part", here)


def refuse_casts(recorded: Iterable[BoundSymbol], is_seen: bool, here: Callable[[], str]) -> None:
    """Refuse an in-place call whose result eager would not cast to the dtype of the written tensor.

    If autograd sees the call (`is_seen`), refuse an operand that requires grad and has another dtype: autograd computes
    the operand's gradient in the dtype of the written tensor.
    """
    makers: dict[str, BoundSymbol] = {}
    for item in recorded:
        maker = makers.get(item.args[0].name) if item.symbol.fn is _aten._to_copy.default else None
        if maker is not None:
            before, dtype = item.args[0].dtype, item.output.dtype
            if not torch.can_cast(before, dtype):
                _refuse(f"of {before} to a tensor of {dtype}", here)
            operand = maker.args[0] if is_seen and in_place_twin(maker.symbol.fn) else None
            others = {proxy.dtype for proxy in maker.inputs if proxy.requires_grad} - {dtype}
            if others and isinstance(operand, TensorProxy) and operand.dtype == dtype:
                _refuse(f"with an operand of another dtype than {dtype} that requires grad", here)
        if item.is_leaf:
            makers.update((proxy.name, item) for proxy in item.outputs)


@contextlib.contextmanager
def backward_writes_refused(
    tracker: Tracker, tensors: Sequence[torch.Tensor], subject: str
) -> Iterator[None]:
    """Raise `Unsupported` if backward code run inside writes to one of its argument tensors."""
    before = [tracker.proxy_of(tensor) for tensor in tensors]
    yield
    if before != [tracker.proxy_of(tensor) for tensor in tensors]:
        raise Unsupported(
            f"{subject} writes in place to a tensor that it is handed; write to a clone, or return another"
        )


def _refuse(subject: str, here: Callable[[], str]) -> None:
    # TorchDynamo may treat a tensor that requires grad by a write as one that does not, and skip a Function's backward
    raise Unsupported(
        f"a write {subject}, in {here()}; write to a clone, or make a new tensor", splits=False
    )
