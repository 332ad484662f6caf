"""The global state of PyTorch that a compiled entry is valid in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import DeviceContext

from switchgear import torch_internals as internals
from switchgear.errors import Unsupported


def modes_key() -> tuple[Any, ...]:
    """Everything global that a capture depends on, hashable. Raises `Unsupported` under a foreign function mode."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        tuple([_device(mode) for mode in internals.function_modes()]),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        internals.autocast_key(),
        internals.autocast_nested(),
    )


def _device(mode: Any) -> str:
    if isinstance(mode, DeviceContext):
        return str(mode.device)
    raise Unsupported(
        f"a __torch_function__ mode ({type(mode).__qualname__}) is active: it would not see the calls of a compiled "
        "function. Call the jitted function outside of it"
    )


def modes_guard() -> Callable[[], bool]:
    """A cheap check that the global state is what it is now; False may be for a state that `modes_key` ignores."""
    check, key = internals.GlobalStateGuard().check, modes_key()
    stack_depth, depth = torch._C._len_torch_function_stack, torch._C._len_torch_function_stack()
    is_inference, inference = torch.is_inference_mode_enabled, torch.is_inference_mode_enabled()
    is_nested, nested = internals.autocast_nested, internals.autocast_nested()
    get_precision, precision = torch.get_float32_matmul_precision, torch.get_float32_matmul_precision()

    def same() -> bool:
        if stack_depth() != depth or is_inference() is not inference or get_precision() != precision:
            return False
        if is_nested() is not nested:
            return False
        # the C++ guard sees no default device, and looks at what changes no result too, such as the number of threads
        return (not depth and check()) or modes_key() == key

    return same
