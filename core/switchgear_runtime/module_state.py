"""Guards on modules other than on their tensors: training flags, hooks and structure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from switchgear_core import torch_private as internals
from switchgear_core.record.guards import Known, still_there

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def modules_key(parts: Iterable[torch.nn.Module]) -> tuple[Any, ...]:
    """Return training flags and hooks of modules, and global hooks, hashable."""
    return (*map(len, internals.global_module_hooks()), *map(_part_key, parts))


def modules_guard(
    parts: Sequence[torch.nn.Module], fetched: Container[tuple[torch.nn.Module | None, str]]
) -> Callable[[], bool]:
    """Return a check that training flags, hooks, names, None entries and submodules are unchanged.

    Entries `fetched` for the call, by module and name, are known to be tensors. The check does not keep modules alive.
    The key has their ids, so all must still exist.
    """
    key, everywhere = modules_key(parts), internals.global_module_hooks()
    if any(everywhere) or any("training" not in part.__dict__ for part in parts):
        references = [*map(Known, parts)]
        return lambda: modules_key(still_there(references)) == key
    forwards = [(getter, getter()) for part in parts for getter in _own_forwards(part)]
    # a forward of the instance itself is covered by `forwards`
    states = [
        (
            state,
            part.training,
            [*map(id, part._modules.values())],
            None if "forward" in state else "forward",
            _hooks_of(state),
        )
        for part in parts
        for state in (part.__dict__,)
    ]
    slots = [
        (part.__dict__, kind, name, tensor is None)
        for part in parts
        for kind in ("_parameters", "_buffers")
        for name, tensor in getattr(part, kind).items()
        if (part, name) not in fetched
    ]

    counts = [
        (content, len(content)) for part in parts for content in (part._parameters, part._buffers)
    ]

    def same_forwards() -> bool:
        for getter, value in forwards:
            if getter() is not value:
                return False
        return not any(everywhere)

    def same() -> bool:
        for state, training, children, forward, hooks in states:
            has_hooks = (
                state["_forward_hooks"]
                or state["_forward_pre_hooks"]
                or state["_backward_hooks"]
                or state["_backward_pre_hooks"]
            )
            if (
                state["training"] is not training
                or ((hooks or has_hooks) and _hooks_of(state) != hooks)
                or forward in state
                or len(state["_modules"]) != len(children)
                or (children and [*map(id, state["_modules"].values())] != children)
            ):
                return False
        for slot, count in counts:
            if len(slot) != count:
                return False
        for state, kind, name, empty in slots:
            if (state[kind].get(name) is None) is not empty:
                return False
        return same_forwards()

    if internals.HAS_INLINE_VALUES:
        return same
    dicts = [*map(vars, parts)]
    place = (key, *map(id, dicts), *[(id(state), *slot) for state, *slot in slots])
    versions = _CHECKS.get(place)
    if versions is None:
        unread = {id(state[kind]): state[kind] for state, kind, _, _ in slots}
        versions = _Versions(dicts, [*unread.values()], same_forwards, same)
        _CHECKS[place] = versions
    return versions.check


class _Versions:
    """A check whether modules are unchanged: a few µs for hundreds, while their `__dict__`s are not written to.

    `unread` are the dicts of parameters and buffers that are not fetched completely. `light` is an additional check;
    `full` decides after a write to one of the dicts.
    """

    def __init__(
        self,
        states: list[dict[str, Any]],
        unread: list[dict[str, Any]],
        light: Callable[[], bool],
        full: Callable[[], bool],
    ) -> None:
        self._states, self._unread, self._light, self._full = states, unread, light, full
        self._rewrites, self._patience = 0, 8
        self._look()

    def _look(self) -> None:
        states = self._states
        children = [state["_modules"] for state in states if state["_modules"]]
        self._not_written = internals.not_written((*states, *self._unread, *children))
        slots = [state[name] for state in states for name in ("_parameters", "_buffers", *_HOOKS)]
        slots += [state["_modules"] for state in states if not state["_modules"]]
        self._empty = [slot for slot in slots if not slot]
        self._filled = [slot for slot in slots if slot]
        self._count = sum(map(len, self._filled))
        # `move_to_end` changes neither version nor length
        self._hooks = [state[name] for state in states for name in _HOOKS if state[name]]
        self._hook_ids = [*map(tuple, self._hooks)]

    def check(self) -> bool:
        if (
            self._not_written()
            and not any(self._empty)
            and sum(map(len, self._filled)) == self._count
            and [*map(tuple, self._hooks)] == self._hook_ids
        ):
            return self._light()
        if not self._full():
            return False
        self._rewrites += 1
        if self._rewrites == self._patience:
            self._patience *= 2
            self._look()
        return True


#: The checks of entries: equal checks are one shared object, cheaper where entries alternate.
_CHECKS: WeakValueDictionary[tuple[Any, ...], _Versions] = WeakValueDictionary()


def is_uninitialised(module: torch.nn.Module) -> bool:
    """Check whether lazy submodules have yet to create their parameters, as their first call does."""
    return any(
        isinstance(part, LazyModuleMixin) and part.has_uninitialized_params()
        for part in module.modules()
    )


def any_hooks(parts: Iterable[torch.nn.Module]) -> bool:
    """Check whether a module of `parts` has hooks, or global module hooks exist."""
    return any(internals.global_module_hooks()) or any(_hooks_of(vars(part)) for part in parts)


def _hooks_of(state: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [tuple(state[name]) for name in _HOOKS if state[name]]


def _own_forwards(part: torch.nn.Module) -> list[Callable[[], Any]]:
    """Return getters of the forward that an instance has, or may have, in place of its class's."""
    getters: list[Callable[[], Any]] = []
    if "forward" in part.__dict__:
        getters.append(partial(part.__dict__.get, "forward"))
    if hasattr(type(part), "_switchgear_forward"):
        reference = Known(part)
        getters.append(lambda: getattr(reference(), "_switchgear_forward", None))
    return getters


def _part_key(part: torch.nn.Module) -> tuple[Any, ...]:
    slots = [
        (name, value is None)
        for content in (part._parameters, part._buffers)
        for name, value in content.items()
    ]
    children = map(id, part._modules.values())
    return (
        id(part),
        part.training,
        *[getter() for getter in _own_forwards(part)],
        *children,
        *slots,
        *_hooks_of(vars(part)),
    )
