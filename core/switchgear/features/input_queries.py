"""What a function asks of its inputs beside their values: the entry is guarded on the answer."""

from __future__ import annotations

from typing import Any

from switchgear.capture.call import Call
from switchgear.capture.handler import PASS, Handler, getter
from switchgear.capture.recorder import Recorder


class InputQueries(Handler):
    """Whether a tensor is a leaf of autograd."""

    functions = frozenset({getter("is_leaf")})

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Take note that it is asked for; PyTorch answers."""
        recorder.matters.leaves = True
        return PASS
