"""What a trace takes for granted about a module beside its tensors: training flags and hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from switchgear import torch_internals as internals

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def modules_key(parts: Iterable[torch.nn.Module]) -> tuple[Any, ...]:
    """Training flags and hooks of modules and of all modules, hashable."""
    return (*map(len, internals.global_module_hooks()), *map(_part_key, parts))


def modules_guard(modules: tuple[torch.nn.Module, ...]) -> Callable[[], bool]:
    """A check that training flags and hooks are what they are now, and the submodules the same."""
    parts = [part for module in modules for part in module.modules()]
    key = modules_key(parts)
    return lambda: modules_key(parts) == key


def _part_key(part: torch.nn.Module) -> tuple[Any, ...]:
    state = part.__dict__
    empty = [name for slots in (part._parameters, part._buffers) for name in slots if slots[name] is None]
    hooks = [tuple(state[name]) for name in _HOOKS if state[name]]
    return (id(part), state["training"], state.get("forward"), *map(id, part._modules.values()), *empty, *hooks)
