"""Every private API of PyTorch in the executor, and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

import switchgear as sg


def has_kernel(overload: torch._ops.OpOverload, device: str) -> bool:
    """Check whether an overload has its own kernel for a type of device, and is not composed of another overload."""
    name = f"{overload._schema.name}.{overload._overloadname}".removesuffix(".default")
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, torch._C._dispatch_key_for_device(device))


def make_meta(proxy: sg.TensorProxy, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """Return a tensor without data, with a proxy's dtype and bits."""
    with sg.capture.real_dispatch():
        tensor = torch.empty_strided(shape, stride, dtype=proxy.dtype, device="meta")
        tensor = torch._conj(tensor) if proxy.is_conj else tensor
        return torch._neg_view(tensor) if proxy.is_neg else tensor


class _Dispatched(Exception):
    """Exception that ends a call at its first dispatch."""


@functools.cache
def _mode() -> Any:
    """Return the mode in which the first dispatch ends a call."""

    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415  a PyTorch may have it no more

    class FirstDispatched(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            """Return False: PyTorch would wrap the handler, and import TorchDynamo for the wrapper."""
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise _Dispatched(func, args, kwargs or {})

    return FirstDispatched


def first_dispatched(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]] | None:
    """Return the first overload dispatched by a call, with its arguments, without running it; None if refused."""
    with sg.capture.real_dispatch(), torch._C._DisableAutocast(), _mode()():
        try:
            fn(*args, **kwargs)
        except _Dispatched as first:
            return first.args
        except Exception:  # no such signature
            return None
    return None
