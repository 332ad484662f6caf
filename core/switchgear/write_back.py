"""Writes through views, as functionalization brings them back to the base: made exact where it is not, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .errors import Unsupported
from .nesting import tensors_in
from .shared_memory import overlap_in_part, overlaps_itself
from .torch_internals import storage_key

_aten = torch.ops.aten
#: What brings a write through a view back to its base.
_INVERSES = (
    _aten.slice_scatter.default,
    _aten.select_scatter.default,
    _aten.diagonal_scatter.default,
    _aten.as_strided_scatter.default,
)


def is_in_place(name: str) -> bool:
    """Whether a torch-level function of that name writes to its first argument."""
    return name.startswith("__i") or name == "__setitem__" if name.endswith("__") else name.endswith("_")


class WriteBack:
    """Watches the overloads that one call dispatches which writes to a tensor.

    Through `expand` PyTorch gives the base the value `base + sum_to(written - base)`. Where nothing is expanded that is
    what was written, in the shape of the base; where there is no element, the base. Refused are other views that have
    several elements in one place: eager refuses those of `expand`, and writes to others in an order of its own.
    """

    def __init__(self, here: Callable[[], str], target: torch.Tensor | None) -> None:
        self._here = here
        #: What is written to, if it is not the first argument: `out`.
        self._target = target
        self._base: torch.Tensor | None = None
        self._unexpanded = False

    def replaced(self, func: Any, args: tuple[Any, ...], is_new: Callable[[torch.Tensor], bool]) -> Any:
        """What takes the place of a call's result; None where the call is recorded. `is_new`: the write made it."""
        if func is _aten.unfold_backward.default:
            self._refuse("made by unfold")
        if func not in _INVERSES:
            self._refuse_overlap([*tensors_in(args)])
        if func is _aten.as_strided_scatter.default and overlaps_itself(args[0].as_strided(*args[2:])):
            self._refuse("several elements of which are in one place (as after as_strided)")
        if func is _aten.sub.Tensor and isinstance(args[1], torch.Tensor) and is_new(args[0]):
            written, self._base = args
            self._unexpanded = written.shape[written.dim() - self._base.dim() :] == self._base.shape
            self._unexpanded &= written.numel() == self._base.numel()
            if written.numel() and not self._unexpanded:
                self._refuse("several elements of which are in one place (as after expand)")
            return written
        if self._base is None:
            return None
        if func is _aten.add.Tensor and args[0] is self._base:
            self._base = None
            return args[1] if self._unexpanded else args[0]
        if self._unexpanded:
            return args[0] if func is _aten.sum.dim_IntList else None
        return func(*args)

    def _refuse_overlap(self, tensors: list[torch.Tensor]) -> None:
        """Eager refuses such a write where it can tell, and else the result depends on the order of its loops."""
        target = self._target if self._target is not None else next(iter(tensors), None)
        for tensor in tensors:
            if target is not None and storage_key(tensor) == storage_key(target) and overlap_in_part(tensor, target):
                raise Unsupported(
                    f"a write to a tensor whose memory overlaps that of another argument in part, in {self._here()}: "
                    "what is read may have been overwritten by then; read a clone"
                )

    def _refuse(self, what: str) -> None:
        raise Unsupported(
            f"a write through a view {what}, in {self._here()}: it cannot be made functional; write to a clone"
        )
