"""Private names of PyTorch: the state of dispatch around the functions of subclasses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from switchgear_core.torch_private.autograd import make_non_leaf, node_apply
from switchgear_core.torch_private.fakes import OpOverload
from switchgear_core.torch_private.functionalize import functionalize_keys, is_wrapper, storage_key, unwrap, wrap
from switchgear_core.torch_private.modes import (
    DisableTorchFunction,
    DispatchMode,
    attention_backends,
    dispatch_from_top,
    function_modes_on,
    functorch_active,
    tensor_guards,
)
from switchgear_core.torch_private.names import private
from switchgear_subclasses.torch_private.jagged import GET_VALUES, NestedTensor, numbered

_disable_current_modes: Any = private("torch.utils._python_dispatch._disable_current_modes")

__all__ = [
    "DISABLED",
    "GET_VALUES",
    "DisableTorchFunction",
    "DispatchMode",
    "NestedTensor",
    "OpOverload",
    "above_subclasses",
    "attention_backends",
    "back_inside",
    "dispatch_from_top",
    "function_modes_on",
    "functorch_active",
    "is_wrapper",
    "make_non_leaf",
    "node_apply",
    "numbered",
    "outside",
    "storage_key",
    "subclass_functions_enabled",
    "tensor_guards",
    "unwrap",
    "wrap",
]

#: `__torch_function__` of classes without functions of their own.
DISABLED: Any = private("torch._C._disabled_torch_function_impl")
#: Whether functions of subclasses are called.
subclass_functions_enabled: Callable[[], bool] = private("torch._C._is_torch_function_enabled")


@contextlib.contextmanager
def above_subclasses(mode: DispatchMode) -> Iterator[None]:
    """Return a context in which `mode` gets operators before functionalization, and functions of subclasses are off."""
    with (
        torch._C._ExcludeDispatchKeyGuard(functionalize_keys()),
        torch._C.DisableTorchFunctionSubclass(),
        mode,
    ):
        yield


@contextlib.contextmanager
def outside(state: tuple[Any, Any]) -> Iterator[None]:
    """Return a context as outside of the capture, for real tensors; `state` is the recorder's `dispatch_state`."""
    with torch._C._ForceDispatchKeyGuard(*state), _disable_current_modes(), DisableTorchFunction():
        yield


@contextlib.contextmanager
def back_inside(state: tuple[Any, Any]) -> Iterator[None]:
    """Return a context in which the operators of a handler are recorded; `state` is the recorder's `dispatch_state`."""
    include, exclude = state
    with torch._C._ForceDispatchKeyGuard(include | functionalize_keys(), exclude), torch._C._EnableTorchFunction():
        yield
