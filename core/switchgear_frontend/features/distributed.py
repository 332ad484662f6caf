"""Collectives and parallel wrappers: communication with other processes is never dropped, doubled or reordered.

Functional collectives are operators of the trace, in the same order and number. Other collectives write into their
arguments and return a work object to wait for; a trace cannot hold such calls, so they are refused. Code of
`torch.distributed` that the function starts, and wrappers whose Python communicates, are refused in `known_calls`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from switchgear_core.errors import Unsupported
from switchgear_core.nesting import tensors_in
from switchgear_core.record.call import Call, Operation
from switchgear_core.record.handler import PASS, Handler
from switchgear_core.record.recorder import Recorder

_SHARDED = (
    "is sharded (a DTensor, as fully_shard and tensor parallelism make them), which is read and written by Python in "
    "every call; sg.jit the parts first and shard their results: fully_shard(sg.jit(layer))"
)


class Distributed(Handler):
    """Handler of in-place collectives and sharded tensors: both are refused."""

    @contextlib.contextmanager
    def running(
        self, recorder: Recorder, roots: Sequence[object], arguments: Mapping[int, object]
    ) -> Iterator[None]:
        """Refuse a module whose parameters are sharded."""
        for root in roots if "torch.distributed.tensor" in sys.modules else ():
            for name, tensor in root.named_parameters() if isinstance(root, nn.Module) else ():
                if _is_sharded(tensor):
                    raise Unsupported(f"the parameter {name} of {type(root).__name__} {_SHARDED}")
        yield

    def take(self, recorder: Recorder, call: Call) -> Any:
        """Refuse sharded tensors, and functional collectives through which a gradient would have to flow."""
        module = getattr(call.fn, "__module__", None) or ""
        is_functional = module.rpartition(".")[2] == "_c10d_functional"
        if not is_functional and "torch.distributed.tensor" not in sys.modules:
            return PASS
        for tensor in tensors_in((call.args, call.kwargs)):
            if _is_sharded(tensor):
                raise Unsupported(f"a tensor in {recorder.here()} {_SHARDED}")
            if is_functional and tensor.requires_grad and torch.is_grad_enabled():
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


def _is_sharded(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
