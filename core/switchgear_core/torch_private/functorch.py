"""Transforms of `torch.func`: code inside and outside of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch._functorch.vmap as functorch_vmap
from torch._functorch import eager_transforms, pyfunctorch

from switchgear_core.patches import redirected, together


def outside_functorch() -> AbstractContextManager[Any]:
    """Return a context outside every `torch.func` transform."""
    return pyfunctorch.temporarily_clear_interpreter_stack()


def functorch_operands(
    operand: Callable[[torch.Tensor], torch.Tensor],
) -> AbstractContextManager[None]:
    """Return a context in which `torch.func` transforms of this thread wrap `operand(tensor)` instead of `tensor`."""

    def wrap(original: Callable[..., object], tensor: torch.Tensor, *rest: object) -> Any:
        return original(operand(tensor), *rest)

    places = (eager_transforms, "_wrap_for_grad"), (functorch_vmap, "_add_batch_dim")
    return together(redirected(place, name, wrap) for place, name in places)


def tracers_refused(refuse: Callable[[str], None]) -> AbstractContextManager[None]:
    """Return a context that calls `refuse(name)` for a tracing `torch.func` transform on the current thread."""

    def refused(name: str, original: Any, *args: Any) -> Any:
        refuse(name)
        return original(*args)

    parts = {
        "functionalize": "_wrap_all_tensors_to_functional",
        "linearize": "lazy_dynamo_disallow",
    }
    return together(
        redirected(eager_transforms, part, functools.partial(refused, name))
        for name, part in parts.items()
    )


def inside_functorch() -> bool:
    """Check whether a `torch.func` transform is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_functorch_tensor(tensor: torch.Tensor) -> bool:
    """Check whether a `torch.func` transform wraps the tensor."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))
