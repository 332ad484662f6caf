"""What a trace takes for granted about a module beside its tensors: training flags and hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from switchgear import torch_internals as internals

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def module_key(module: torch.nn.Module | None) -> tuple[Any, ...]:
    """Training flags and hooks of every submodule, hashable."""
    if module is None:
        return ()
    return (*_global_hooks(), *[_part_key(part) for part in module.modules()])


def _part_key(part: torch.nn.Module) -> tuple[Any, ...]:
    state = part.__dict__
    hooks = [tuple(state[name]) for name in _HOOKS if state[name]]
    return (id(part), state["training"], state.get("forward"), _empty_slots(part), *hooks)


def _empty_slots(part: torch.nn.Module) -> tuple[str, ...]:
    return tuple([name for slots in (part._parameters, part._buffers) for name in slots if slots[name] is None])


def _global_hooks() -> tuple[int, ...]:
    return tuple([len(hooks) for hooks in internals.global_module_hooks()])


def module_guard(module: torch.nn.Module) -> Callable[[], bool]:
    """A check that training flags and hooks are what they are now, and the submodules the same."""
    parts = [(part.__dict__, part.__dict__["training"], _children(part)) for part in module.modules()]
    plain = [(part, part.__dict__.get("forward"), _empty_slots(part)) for part in module.modules()]
    everywhere = _global_hooks()
    hooked = [(part.__dict__[hooks], tuple(part.__dict__[hooks])) for part in module.modules() for hooks in _HOOKS]

    def same() -> bool:
        for state, training, children in parts:
            if state["training"] is not training or list(state["_modules"].values()) != children:
                return False
        for part, forward, empty in plain:
            if part.__dict__.get("forward") is not forward or _empty_slots(part) != empty:
                return False
        return _global_hooks() == everywhere and all(tuple(hooks) == before for hooks, before in hooked)

    return same


def _children(part: torch.nn.Module) -> list[torch.nn.Module | None]:
    return list(part._modules.values())
