"""Functions that PyTorch's own parts of would be captured otherwise than eager runs them, each with a handler."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from switchgear import torch_private as internals
from switchgear.ir.symbol import Symbol
from switchgear.nesting import map_tensors, tensors_in
from switchgear.record.call import Call
from switchgear.record.handler import PASS, Handler
from switchgear.record.recorder import Recorder

ONE_HOT = Symbol("torch.nn.functional.one_hot", F.one_hot)


class OneHot(Handler):
    """`one_hot` looks at its data to check them alone: it stays whole, and checks them in every call.

    Routers of experts and quantisers of vectors use it, with a number of classes; else the shape depends on data.
    """

    functions = frozenset({F.one_hot})

    def answer(self, recorder: Recorder, call: Call) -> object:
        """The vectors."""
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
    """`torch._foreach_add_` and the like raise versions in eager, not under functionalization.

    What is written without a new version is taken for a write through `.data`.
    """

    functions = frozenset(
        getattr(torch, name)
        for name in dir(torch)
        if name.startswith("_foreach_") and name.endswith("_")
    )

    def answer(self, recorder: Recorder, call: Call) -> Any:
        """Raise the versions of the tensors in the first argument, and let the call go on."""
        for tensor in call.args[0]:
            if not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)
        return PASS


class BatchOfOne(Handler):
    """A product of batches of which one is a single matrix that needs no gradient: eager repeats it.

    Of what is no plain tensor, or requires grad, PyTorch multiplies the rows of all matrices by it at once.
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
        """The call of matrices that are repeated already."""
        tensors = [*tensors_in((call.args, call.kwargs))]
        if len(tensors) == 2 and all(tensor.dim() == 3 for tensor in tensors):
            others = {id(one): other for one, other in (tensors, tensors[::-1])}
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
