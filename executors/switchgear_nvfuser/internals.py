"""Every private API of PyTorch in the executor, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import switchgear as sg

#: Function from an operator and its arguments to its result, or NotImplemented.
Handler = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class Dispatched(TorchDispatchMode):
    """Mode that sends every call of an operator overload to `handler`, outside the mode."""

    def __init__(self, handler: Handler) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of PyTorch
        self.handler = handler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Pass the call to the handler."""
        return self.handler(func, args, kwargs or {})


def decomposition_of(overload: Any) -> Callable[..., Any] | None:
    """Return PyTorch's decomposition of an overload, as a function of its arguments."""
    decomposition: Any = decomposition_table.get(overload)
    if decomposition is not None:
        return decomposition  # type: ignore[no-any-return]
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), "CompositeImplicitAutograd")
    return overload.decompose if composite else None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Return a context in which no mode of the user sees, or changes, calls."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def fake_mode() -> Any:
    """Return a mode in which tensors have no data, on devices that need not exist."""
    return FakeTensorMode()


def laid_out(proxy: sg.TensorProxy) -> torch.Tensor:
    """Return a tensor with the metadata of a proxy, with any values; a fake tensor inside a fake mode."""
    return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)
