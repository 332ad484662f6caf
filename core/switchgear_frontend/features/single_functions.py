"""Functions whose inner calls would be captured differently from eager, each with a handler."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from switchgear_core import torch_private as internals
from switchgear_core.ir.symbol import Symbol
from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.record.call import Call
from switchgear_core.record.handler import PASS, Handler
from switchgear_core.record.recorder import Recorder

ONE_HOT = Symbol("torch.nn.functional.one_hot", F.one_hot)


class OneHot(Handler):
    """Handler of `one_hot`, whose data is only checked: the call stays whole, and checks the data in every call.

    Routers of experts and quantisers of vectors pass a number of classes; without a number the shape depends on data.
    """

    functions = frozenset({F.one_hot})

    def answer(self, recorder: Recorder, call: Call) -> object:
        """Return the encoded vectors."""
        return _record(recorder, *call.args, **call.kwargs)


def _record(recorder: Recorder, tensor: torch.Tensor, num_classes: Any = -1) -> object:
    if type(num_classes) is not int or num_classes < 1 or tensor.dtype is not torch.int64:
        return PASS
    with recorder.paused():
        result = tensor.new_zeros((*tensor.shape, num_classes))
    proxy = recorder.values.define(internals.unwrap(result), False)
    recorder.record(ONE_HOT, (recorder.tracker.proxy_of(tensor), num_classes), proxy)
    return recorder.track_outputs(result)


class Foreach(Handler):
    """Handler of `torch._foreach_add_` and the like, which raise versions in eager, not under functionalization.

    Capture would take a write without a new version for a write through `.data`.
    """

    functions = frozenset(
        getattr(torch, name)
        for name in dir(torch)
        if name.startswith("_foreach_") and name.endswith("_")
    )

    def answer(self, recorder: Recorder, call: Call) -> Any:
        """Raise the versions of the tensors in the first argument, and let the call proceed."""
        for tensor in call.args[0]:
            if not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)
        return PASS


class BatchOfOne(Handler):
    """Handler of batched products with a batch of one matrix without requires_grad: eager repeats the matrix.

    With subclasses of tensors, or if the matrix requires grad, PyTorch multiplies the rows of all matrices at once.
    """

    functions = frozenset(
        {
            torch.matmul,
            torch.linalg.matmul,
            torch.Tensor.matmul,
            torch.Tensor.__matmul__,
            torch.Tensor.__rmatmul__,
        }
    )

    def answer(self, recorder: Recorder, call: Call) -> object:
        """Replace the arguments by matrices repeated in advance."""
        tensors = [*tensors_in((call.args, call.kwargs))]
        if len(tensors) == 2 and all(tensor.dim() == 3 for tensor in tensors):
            others = {id(tensor): other for tensor, other in (tensors, tensors[::-1])}
            call.args, call.kwargs = map_tensors(
                lambda tensor: _repeated(recorder, tensor, others[id(tensor)]),
                (call.args, call.kwargs),
            )
        return PASS


def _repeated(recorder: Recorder, tensor: torch.Tensor, other: torch.Tensor) -> Any:
    if tensor.requires_grad or not other.requires_grad or tensor.shape[0] != 1:
        return tensor
    if other.shape[0] == 1:
        return tensor
    return recorder.track_outputs(tensor.expand(other.shape[0], -1, -1))
