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
        internals.float32_precision(),
        internals.attention_backends(),
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
    key, check = modes_key(), internals.GlobalStateGuard().check
    is_grad, grad = torch.is_grad_enabled, torch.is_grad_enabled()
    is_inference, inference = torch.is_inference_mode_enabled, torch.is_inference_mode_enabled()
    count_modes, count = internals.function_mode_count, internals.function_mode_count()
    get_precision, precision = internals.float32_precision, internals.float32_precision()
    get_attention, attention = internals.attention_backends, internals.attention_backends()
    enter, leave, nested = torch.autocast_increment_nesting, torch.autocast_decrement_nesting, key[-1]

    def same() -> bool:
        # the state that changes most often, or that the C++ guard does not see
        if is_grad() is not grad or is_inference() is not inference or count_modes() != count:
            return False
        enter()
        if (leave() > 0) is not nested or get_precision() != precision or get_attention() != attention:
            return False
        # the C++ guard sees no default device, and looks at what changes no result too, such as the number of threads
        return (not count and check()) or modes_key() == key

    return same
