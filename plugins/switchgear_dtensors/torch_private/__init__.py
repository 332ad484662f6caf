"""Private names of PyTorch: the parts of a DTensor, and its Functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Replicate, _api, _redistribute
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from switchgear_core.nesting import tensors_in
from switchgear_core.torch_private.autograd import forward_mode_active
from switchgear_core.torch_private.fake_mode import new_fake_mode
from switchgear_core.torch_private.fakes import is_fake
from switchgear_core.torch_private.functionalize import is_wrapper, unwrap
from switchgear_core.torch_private.modes import (
    DisableTorchFunction,
    dispatch_mode_count,
    dispatch_state,
    functorch_active,
    tensor_guards,
)
from switchgear_core.torch_private.names import private

_disable_current_modes: Any = private("torch.utils._python_dispatch._disable_current_modes")

__all__ = [
    "FUNCTIONS",
    "TO_LOCAL",
    "AsyncCollectiveTensor",
    "DTensor",
    "DisableTorchFunction",
    "DispatchMode",
    "WeakIdKeyDictionary",
    "around",
    "dispatch_mode_count",
    "forward_mode_active",
    "functorch_active",
    "is_fake",
    "is_view",
    "is_wrapper",
    "local_of",
    "local_operator",
    "new_local_mode",
    "outside",
    "release_fake_masks",
    "replica",
    "replicates_implicitly",
    "spec_of",
    "special_handlers",
    "tensor_guards",
    "unwrap",
]

#: The Function of `to_local`.
TO_LOCAL: Any = _api._ToTorchTensor
#: Functions between DTensors, and between DTensors and plain tensors, with their users' names. They save no tensors.
FUNCTIONS: Mapping[Any, str] = {
    _api._FromTorchTensor: "from_local",
    TO_LOCAL: "to_local",
    _redistribute.Redistribute: "redistribute",
}


class _FakeMode(type(new_fake_mode())):  # type: ignore[misc]
    """Mode of fake local tensors: it leaves operators on DTensors to their class."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs or {})


def new_local_mode() -> Any:
    """Return a mode in which operators on local tensors compute metadata only, without communication."""
    return _FakeMode(None)


#: From a DTensor to its local tensor.
local_of: Callable[[Any], Any] = attrgetter("_local_tensor")
#: From a DTensor to its mesh, placements, sizes and strides.
spec_of: Callable[[Any], Any] = attrgetter("_spec")


def around(local: torch.Tensor, spec: Any) -> torch.Tensor:
    """Return a DTensor with a local tensor, without history."""
    return DTensor(local, spec, requires_grad=False)


def replica(local: torch.Tensor, mesh: Any) -> torch.Tensor:
    """Return a DTensor of replicas of a tensor."""
    meta = TensorMeta(local.size(), local.stride(), local.dtype)
    return around(local, DTensorSpec(mesh, (Replicate(),) * mesh.ndim, tensor_meta=meta))


def replicates_implicitly() -> bool:
    """Check whether DTensors take plain tensors as replicas: `torch.distributed.tensor.experimental`'s context."""
    return bool(DTensor._op_dispatcher._allow_implicit_replication)


def special_handlers() -> list[object]:
    """Return the handlers of operators that DTensor treats specially; `loss_parallel` adds some."""
    return [*DTensor._op_dispatcher._custom_op_handlers.values()]


def release_fake_masks(tensor: torch.Tensor) -> None:
    """Release the fake masks that the placements of a DTensor hold, as those of a result of an embedding of rows do.

    PyTorch keeps a placement, and its mask, for later calls.
    """
    for placement in tensor.placements if isinstance(tensor, DTensor) else ():
        buffer = getattr(placement, "mask_buffer", None)
        if buffer is not None and is_fake(buffer.data):
            buffer.data, buffer.refcount = None, 0


def local_operator(
    function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object, tuple[object, ...], dict[str, object]] | None:
    """Return the operator that DTensor runs on local tensors, with its arguments, if it does nothing else.

    In the arguments DTensors stand for their local tensors. None if it communicates, or treats the operator specially.
    """
    tensors = [*tensors_in((args, kwargs))]
    plain = [tensor for tensor in tensors if type(tensor) is not DTensor]
    if len(plain) == len(tensors):
        return function, args, kwargs
    dispatcher: Any = DTensor._op_dispatcher
    is_special = function in dispatcher._custom_op_handlers or function in dispatcher._random_ops
    if is_special or function._schema.is_mutable or any(tensor.dim() for tensor in plain):
        return None
    try:
        info = dispatcher.unwrap_to_op_info(function, args, kwargs)
        sharding = dispatcher.sharding_propagator.propagate_op_sharding(info.schema)
    except Exception:  # the call itself raises it, or decomposes the operator
        return None
    if sharding.output_spec is None or info.compute_mesh.get_coordinate() is None:
        return None
    if not sharding.needs_redistribute:
        return function, args, kwargs
    wanted = sharding.redistribute_schema
    pairs = [*zip(info.flat_args_schema, wanted.args_schema, strict=False)]
    moves = any(isinstance(now, DTensorSpec) and now != then for now, then in pairs)
    if moves or info.args_tree_spec is not None or not sharding.use_val_from_redistribute_schema:
        return None
    # with the sizes of the local tensors for those of the whole
    own = [arg if isinstance(arg, torch.Tensor) else then for arg, (_, then) in zip(args, pairs, strict=True)]
    return wanted.op, (*own, *wanted.args_schema[len(args) :]), kwargs


def is_view(function: Any) -> bool:
    """Check whether an operator returns views of its arguments."""
    return any(result.alias_info is not None for result in function._schema.returns)


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Return a context as outside of the capture and of autograd; regions of autocast stay."""
    with (
        torch._C._ForceDispatchKeyGuard(*dispatch_state()),
        _disable_current_modes(),
        DisableTorchFunction(),
        torch.no_grad(),
    ):
        yield
