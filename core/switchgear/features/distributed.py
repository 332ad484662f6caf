"""Collectives and parallel wrappers inside: what other processes take part in is never dropped, doubled or reordered.

Functional collectives are operators of the trace, which keep their order and their number. All others write into
tensors that they are given, and wrap a work that is waited for, so a trace cannot hold them: they are refused, as are
wrappers whose Python communicates in every call.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn

from switchgear.capture.call import Call, Operation
from switchgear.capture.handler import PASS, Handler
from switchgear.capture.recorder import Recorder, active_recorder
from switchgear.errors import Unsupported
from switchgear.nesting import tensors_in
from switchgear.patches import redirected

#: Namespaces of operators that communicate in place.
_COMMUNICATING = frozenset({"c10d", "symm_mem"})
#: That of functional ones.
_FUNCTIONAL = "_c10d_functional"
_REMEDY = "call it outside the jitted function"
#: What communicates by objects, or by no operator that a mode sees.
_FUNCTIONS = (
    *("barrier", "monitored_barrier", "all_gather_object", "gather_object", "scatter_object_list"),
    *("broadcast_object_list", "send_object_list", "recv_object_list", "batch_isend_irecv"),
    *("new_group", "init_process_group", "destroy_process_group"),
)
#: Where wrappers are defined, their names, and what is to be done instead.
_WRAPPERS = (
    ("torch.nn.parallel", "DistributedDataParallel", "DistributedDataParallel(sg.jit(module))"),
    ("torch.nn.parallel", "DataParallel", "nn.DataParallel(sg.jit(module))"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "fully_shard(sg.jit(module))"),
)
_SHARDED = (
    "is sharded (a DTensor, as fully_shard and tensor parallelism make them), which is read and written by Python in "
    "every call; sg.jit the parts first and shard what it returns: fully_shard(sg.jit(layer))"
)


class Distributed(Handler):
    """Collectives by operator and by function, DDP, FSDP and sharded tensors."""

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Functions that no mode sees, and the forwards of wrappers, are refused."""
        with contextlib.ExitStack() as stack:
            if distributed.is_available() and distributed.is_initialized():
                for name in _FUNCTIONS:
                    for module in (distributed, distributed.distributed_c10d):
                        stack.enter_context(redirected(module, name, _refuse_call))
                for name in ("barrier", "monitored_barrier"):
                    stack.enter_context(redirected(distributed.ProcessGroup, name, _refuse_call))
            for place, name, instead in _WRAPPERS:
                if place in sys.modules:
                    wrapper = getattr(sys.modules[place], name)
                    stack.enter_context(redirected(wrapper, "forward", _refusing(name, instead)))
            yield

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
        """Refuse sharded tensors, and functional collectives where a gradient would have to flow through them."""
        is_functional = _is_functional(call.fn)
        if not is_functional and "torch.distributed.tensor" not in sys.modules:
            return PASS
        for tensor in tensors_in((call.args, call.kwargs)):
            if _is_sharded(tensor):
                raise Unsupported(f"a tensor in {recorder.here()} {_SHARDED}")
            if is_functional and _needs_grad(tensor):
                raise Unsupported(
                    f"{call.fn} of what requires grad, in {recorder.here()}: its gradient is a collective too, in the "
                    f"order of autograd; {_REMEDY}, or under no_grad"
                )
        return PASS

    def operator(self, recorder: Recorder, call: Operation) -> Any:
        """Refuse operators that communicate in place."""
        if call.func.namespace in _COMMUNICATING:
            # TorchDynamo makes it functional, which has another gradient
            has_grad = any(_needs_grad(found.tensor) for found in recorder.inputs)
            _refuse(recorder, str(call.func), splits=not has_grad)
        return PASS


def _is_functional(function: object) -> bool:
    return (getattr(function, "__module__", None) or "").rpartition(".")[2] == _FUNCTIONAL


def _is_sharded(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _needs_grad(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _refuse(recorder: Recorder, what: str, splits: bool = True) -> None:
    raise Unsupported(
        f"the collective {what} inside a jitted function, in {recorder.here()}: other processes take part, in every "
        f"call; {_REMEDY}",
        splits=splits,
    )


def _refuse_call(original: Callable[..., object], *args: object, **kwargs: object) -> object:
    recorder = active_recorder()
    if recorder is not None:
        _refuse(recorder, original.__name__)
    return original(*args, **kwargs)


def _refusing(name: str, instead: str) -> Callable[..., object]:
    def refuse(original: Callable[..., object], *args: object, **kwargs: object) -> object:
        if active_recorder() is None:
            return original(*args, **kwargs)
        raise Unsupported(
            f"{name} inside a jitted function: what it does with other devices and processes is Python, in every "
            f"call; sg.jit the module first and wrap what it returns: {instead}"
        )

    return refuse
