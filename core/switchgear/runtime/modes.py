"""The global state of PyTorch that a compiled entry is valid in."""

from __future__ import annotations

from collections.abc import Callable
from operator import call
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
    key, count = modes_key(), internals.function_mode_count()
    get_count = internals.function_mode_count
    # all asked by one list of calls in C, the C++ guard the last; autocast's nesting is back after two of them
    asked = [torch.is_inference_mode_enabled, get_count, internals.float32_precision]
    asked += [torch.autocast_increment_nesting, torch.autocast_decrement_nesting]
    asked += [*internals.ATTENTION_STATE, internals.GlobalStateGuard().check]
    answers = [*map(call, asked)]
    # the C++ guard sees no default device, and looks at what changes no result too, such as the number of threads
    if count or not answers[-1]:
        return lambda: get_count() == count and modes_key() == key

    return lambda: [*map(call, asked)] == answers or (get_count() == count and modes_key() == key)
