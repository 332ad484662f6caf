"""The prologue: does an entry fit a call, and which tensors does it take from it?"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from switchgear import torch_internals as internals
from switchgear.capture import Captured
from switchgear.signature import Argument, Closure, InputSource, ModuleState
from switchgear.structure import Structure, flatten

#: From a call's arguments to the input tensors of a trace, or None where the call is not the entry's.
Prologue = Callable[[tuple[Any, ...], dict[str, Any]], "tuple[Any, ...] | None"]


def value_key(value: Any) -> Any:
    """A Python value as part of a key: with its type, and floats by representation (nan is nan, 0.0 is not -0.0)."""
    if isinstance(value, (float, complex)):
        return (type(value), repr(value))
    if isinstance(value, slice):
        return (slice, value_key(value.start), value_key(value.stop), value_key(value.step))
    return (type(value), value)


def make_prologue(
    leaves: list[Any],
    spec: Structure,
    captured: Captured,
    tensors: list[torch.Tensor],
    same_state: Callable[[], bool],
) -> Prologue:
    """The prologue of the entry captured for these arguments; `tensors` are the trace's inputs at that time.

    It checks tensor metadata, Python values and structure, and asks `same_state` of everything else.
    """
    check = internals.tensor_guards(tensors)
    if _flat_arguments(leaves, spec):
        return _generated(leaves, captured, check, same_state)
    fetch = [_fetcher(source) for source in captured.sources]
    identical = captured.identical
    keys = [None if isinstance(leaf, torch.Tensor) else value_key(leaf) for leaf in leaves]

    def prologue(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        now, now_spec = flatten((args, kwargs))
        if now_spec != spec or not same_state():
            return None
        for leaf, key in zip(now, keys, strict=True):
            if key is not None and value_key(leaf) != key:
                return None
        if any(now[index] is not _held(now, other) for index, other in identical):
            return None
        found = tuple([get(now) for get in fetch])
        return found if all(type(item) in _TENSORS for item in found) and check(*found) else None

    return prologue


def _held(leaves: list[Any], other: int | weakref.ref[torch.Tensor]) -> Any:
    return leaves[other] if isinstance(other, int) else other()


_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})


def _fetcher(source: InputSource) -> Callable[[list[Any]], Any]:
    if isinstance(source, Argument):
        index = source.index
        return lambda leaves: leaves[index]
    if isinstance(source, Closure):
        tensor = source.tensor
        return lambda leaves: tensor
    return lambda leaves: source.fetch()


def _flat_arguments(leaves: list[Any], spec: Structure) -> bool:
    """Whether the call has positional arguments alone, none of them a container."""
    args, kwargs = spec.unflatten(leaves)
    return not kwargs and len(args) == len(leaves) and all(a is b for a, b in zip(args, leaves, strict=True))


def _generated(
    leaves: list[Any],
    captured: Captured,
    check: Callable[..., bool],
    same_state: Callable[[], bool],
) -> Prologue:
    """A prologue written for one flat list of arguments: straight-line Python, for it runs on every call."""
    scope: dict[str, Any] = {"check": check, "same_state": same_state, "value_key": value_key, "tensors": _TENSORS}
    lines = ["def prologue(args, kwargs):", f"    if kwargs or len(args) != {len(leaves)}: return None"]
    for index, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            scope[f"key{index}"] = value_key(leaf)
            lines.append(f"    if value_key(args[{index}]) != key{index}: return None")
    for index, other in captured.identical:
        scope[f"held{index}"] = other
        expected = f"args[{other}]" if isinstance(other, int) else f"held{index}()"
        lines.append(f"    if args[{index}] is not {expected}: return None")
    names = []
    for number, source in enumerate(captured.sources):
        names.append(f"x{number}")
        if isinstance(source, Argument):
            lines.append(f"    x{number} = args[{source.index}]")
            lines.append(f"    if type(x{number}) not in tensors: return None")
        elif isinstance(source, ModuleState):
            scope[f"fetch{number}"] = source.fetch
            lines.append(f"    x{number} = fetch{number}()")
            lines.append(f"    if x{number} is None: return None")
        else:
            scope[f"x{number}_"] = source.tensor
            lines.append(f"    x{number} = x{number}_")
    inputs = ", ".join(names)
    lines.append(f"    if not check({inputs}) or not same_state(): return None")
    lines.append(f"    return ({inputs}{',' if len(names) == 1 else ''})")
    exec("\n".join(lines), scope)
    prologue: Prologue = scope.pop("prologue")
    return prologue
