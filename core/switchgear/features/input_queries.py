"""What a function asks of its inputs beside their values: the entry is guarded on the answer."""

from __future__ import annotations

from typing import Any

import torch

from switchgear import torch_private as internals
from switchgear.capture.call import Call
from switchgear.capture.handler import PASS, Handler, getter
from switchgear.capture.recorder import Recorder


class InputQueries(Handler):
    """`storage_offset()` of an input, and whether a tensor is a leaf."""

    functions = frozenset({torch.Tensor.storage_offset, getter("is_leaf")})

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Where an input begins in its memory; of other tensors, which a write leaves elsewhere than eager, nothing."""
        if call.fn is not torch.Tensor.storage_offset:
            recorder.matters.leaves = True
            return PASS
        (tensor,) = call.args
        if (
            not recorder.tracker.follow_autograd
        ):  # a grad rule: what it is given lies where the trace says
            return int(tensor.storage_offset())
        if (
            internals.inside_functorch()
            or recorder.enclosing is not None
            or recorder.inputs.metadata_calls
        ):
            return PASS
        found = recorder.input_of(recorder.adopted(tensor))
        if found is None:
            return PASS
        recorder.matters.offsets = True
        return found.proxy.storage_offset
