"""`torch._foreach_add_` and the like raise the version of what they write to in eager, not under functionalization."""

from __future__ import annotations

from typing import Any

import torch

from switchgear.capture.call import Call
from switchgear.capture.handler import PASS, Handler
from switchgear.capture.recorder import Recorder


class Foreach(Handler):
    """Their new versions: what is written without one is taken for a write through `.data`."""

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
