"""What a trace takes for granted about a module beside its tensors: training flags and hooks."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from operator import is_not
from typing import Any

import torch

from switchgear import torch_private as internals

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def modules_key(parts: Iterable[torch.nn.Module]) -> tuple[Any, ...]:
    """Training flags and hooks of modules and of all modules, hashable."""
    return (*map(len, internals.global_module_hooks()), *map(_part_key, parts))


def modules_guard(
    modules: tuple[torch.nn.Module, ...], fetched: Container[tuple[torch.nn.Module, str]]
) -> Callable[[], bool]:
    """A check that training flags, hooks, names and what is None are as they are now, and the submodules the same.

    What is `fetched` for the call, by its module and name there, is known to be a tensor.
    """
    parts = [*dict.fromkeys(part for module in modules for part in module.modules())]
    key, everywhere = modules_key(parts), internals.global_module_hooks()
    if any_hooks(parts) or any("forward" in part.__dict__ for part in parts):
        return lambda: modules_key(parts) == key
    states = [(part, part.__dict__, part.training, [*part._modules.values()]) for part in parts]
    slots = [
        (part.__dict__, kind, name, tensor is None)
        for part in parts
        for kind in ("_parameters", "_buffers")
        for name, tensor in part.__dict__[kind].items()
        if (part, name) not in fetched
    ]

    counts = [(held, len(held)) for part in parts for held in (part._parameters, part._buffers)]

    def same() -> bool:
        for part, state, training, children in states:
            if (
                part.__dict__ is not state
                or state["training"] is not training
                or state["_forward_hooks"]
                or state["_forward_pre_hooks"]
                or state["_backward_hooks"]
                or state["_backward_pre_hooks"]
                or "forward" in state
                or len(state["_modules"]) != len(children)
                or (children and any(map(is_not, state["_modules"].values(), children)))
            ):
                return False
        for state, kind, name, empty in slots:
            if (state[kind].get(name) is None) is not empty:
                return False
        for slot, count in counts:
            if len(slot) != count:
                return False
        return not any(everywhere)

    return same


def any_hooks(parts: Iterable[torch.nn.Module]) -> bool:
    """Whether one of these modules has hooks, or all modules have."""
    return any(internals.global_module_hooks()) or any(map(_part_hooks, parts))


def _part_hooks(part: torch.nn.Module) -> list[tuple[Any, ...]]:
    return [tuple(part.__dict__[name]) for name in _HOOKS if part.__dict__[name]]


def _part_key(part: torch.nn.Module) -> tuple[Any, ...]:
    state = part.__dict__
    slots = [
        (name, value is None)
        for held in (part._parameters, part._buffers)
        for name, value in held.items()
    ]
    children = map(id, part._modules.values())
    return (
        id(part),
        state["training"],
        state.get("forward"),
        *children,
        *slots,
        *_part_hooks(part),
    )
