"""Private names of PyTorch: the state of dispatch around the functions of subclasses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from switchgear_core.torch_private.functionalize import functionalize_keys, is_wrapper
from switchgear_core.torch_private.modes import DispatchMode
from switchgear_core.torch_private.names import private

__all__ = ["DISABLED", "DispatchMode", "above_subclasses", "back_inside", "is_wrapper", "subclass_functions_enabled"]

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
def back_inside(state: tuple[Any, Any]) -> Iterator[None]:
    """Return a context in which the operators of a handler are recorded; `state` is the recorder's `dispatch_state`."""
    include, exclude = state
    with torch._C._ForceDispatchKeyGuard(include | functionalize_keys(), exclude), torch._C._EnableTorchFunction():
        yield
