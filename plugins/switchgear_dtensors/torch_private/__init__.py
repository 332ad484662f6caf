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

from switchgear_core.torch_private.fake_mode import new_fake_mode
from switchgear_core.torch_private.fakes import is_fake
from switchgear_core.torch_private.functionalize import is_wrapper, unwrap
from switchgear_core.torch_private.modes import DisableTorchFunction, dispatch_state
from switchgear_core.torch_private.names import private

_disable_current_modes: Any = private("torch.utils._python_dispatch._disable_current_modes")

__all__ = [
    "FUNCTIONS",
    "TO_LOCAL",
    "AsyncCollectiveTensor",
    "DTensor",
    "DisableTorchFunction",
    "around",
    "is_fake",
    "is_wrapper",
    "local_of",
    "new_local_mode",
    "outside",
    "replica",
    "replicates_implicitly",
    "spec_of",
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
