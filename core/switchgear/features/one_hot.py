"""`one_hot` looks at its data to check them alone: it stays whole, and checks them in every call.

Routers of experts and quantisers of vectors use it, with a number of classes; without one the shape depends on data.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from switchgear import torch_private as internals
from switchgear.capture.call import Call
from switchgear.capture.handler import PASS, Handler
from switchgear.capture.recorder import Recorder
from switchgear.ir.symbol import Symbol

ONE_HOT = Symbol("torch.nn.functional.one_hot", F.one_hot)


class OneHot(Handler):
    """A line of its own, for PyTorch's parts take what they check for Python values."""

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
