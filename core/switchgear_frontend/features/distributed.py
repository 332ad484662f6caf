"""Collectives and parallel wrappers: communication with other processes is never dropped, doubled or reordered.

Functional collectives are operators of the trace, in the same order and number. Other collectives write into their
arguments and return a work object to wait for; a trace cannot hold such calls, so they are refused. Code of
`torch.distributed` that the function starts, and wrappers whose Python communicates, are refused in `known_calls`.
"""

from __future__ import annotations

from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.nesting import tensors_in
from switchgear_core.record.call import Call, Operation
from switchgear_core.record.handler import PASS, Handler
from switchgear_core.record.recorder import Recorder


class Distributed(Handler):
    """Handler of collectives in place, and of gradients through collectives: both are refused."""

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Refuse functional collectives through which a gradient would have to flow."""
        module = getattr(call.fn, "__module__", None) or ""
        if module.rpartition(".")[2] != "_c10d_functional":
            return PASS
        for tensor in tensors_in((call.args, call.kwargs)):
            if tensor.requires_grad and torch.is_grad_enabled():
                raise Unsupported(
                    f"{call.fn} of a tensor that requires grad, in {recorder.here()}: its gradient is a collective, "
                    f"in the order of autograd; call it outside the jitted function, or under no_grad"
                )
        return PASS

    def operator(self, recorder: Recorder, call: Operation) -> Any:
        """Refuse operators with communication in place."""
        if call.func.namespace in ("c10d", "symm_mem"):
            raise Unsupported(
                f"the collective {call.func} inside a jitted function, in {recorder.here()}: other processes take "
                "part, in every call; call it outside the jitted function",
                splits=False,  # TorchDynamo would make the call functional, with another gradient
            )
        return PASS
