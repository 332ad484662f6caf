"""What was observed, as plain values that compare: tensors by their bytes, objects by their type and attributes."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from switchgear_core import torch_private as internals

#: How deep what is reachable is looked at.
DEPTH = 7


def record(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """A value that is equal to another's record only if both are alike in type, value and what is shared inside."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return type(value).__name__, repr(value) if type(value).__repr__ in PLAIN else str(value)
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, torch.dtype, torch.device)):
        return "named", getattr(value, "__qualname__", str(value))
    if id(value) in seen:
        return "again", list(seen).index(id(value))
    seen[id(value)] = value  # kept alive: what is new must not get its id
    if isinstance(value, Tensor):
        return _tensor(value, seen)
    return type(value).__qualname__, [record(part, seen) for part in _parts(value)]


PLAIN = {kind.__repr__ for kind in (bool, int, float, complex, str, bytes, type(None))}


def _tensor(value: Tensor, seen: dict[int, Any]) -> Any:
    if is_wrapper(value):
        return ("a tensor of a capture",)
    plain = value.detach().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes().hex() if plain.numel() else ""
    numbers = str(plain.reshape(-1)[:4].tolist())  # for people
    facts = str(value.dtype), tuple(value.shape), value.stride(), value.requires_grad, value.is_leaf
    return type(value).__name__, facts, numbers, data, record(_attributes(value), seen)


def is_wrapper(value: Tensor) -> bool:
    """Whether a tensor is one of those that stand for others during a capture."""
    return internals.is_fake(value) or internals.is_wrapper(value)


def _parts(value: Any) -> Iterator[Any]:
    """What a container or an object holds, in its order."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (key, item)
    elif isinstance(value, (list, tuple, deque)):
        yield from value
    elif isinstance(value, (set, frozenset)):
        yield from sorted(value, key=repr)
    elif isinstance(value, types.CellType):
        yield value.cell_contents
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    if isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, (type, types.ModuleType)):
        yield vars(value)
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield (name, getattr(value, name))


def wrappers(*roots: Any) -> list[str]:
    """Where tensors of a capture are reachable from: attributes, containers, closures, globals, classes."""
    places: list[str] = []
    seen: dict[int, Any] = {}
    queue = deque((root, "", 0) for root in roots)
    while queue:
        value, place, depth = queue.popleft()
        if id(value) in seen or depth > DEPTH or type(value) in (int, float, bool, str, type(None)):
            continue
        seen[id(value)] = value
        if isinstance(value, Tensor) and is_wrapper(value):
            places.append(place)
            continue
        queue.extend((part, f"{place}/{label}", depth + 1) for label, part in _reachable(value))
    return places


def _reachable(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        yield from ((f"cell {i}", cell) for i, cell in enumerate(value.__closure__ or ()))
        yield from ((name, value.__globals__.get(name)) for name in value.__code__.co_names)
        yield "defaults", (value.__defaults__, value.__kwdefaults__, value.__dict__)
    elif isinstance(value, type):
        if value.__module__.startswith("tests.python_state"):
            yield from list(vars(value).items())
    elif isinstance(value, Tensor):
        yield from list(vars(value).items())
        yield "grad", value.grad if value.is_leaf else None
    elif type(value).__module__.startswith(("tests.", "torch.nn", "collections", "functools", "types", "builtins")):
        kind = type(value).__name__
        try:
            parts = list(_parts(value))
        except Exception:  # an empty cell, or a user's attribute that raises
            return
        yield from ((f"{kind} {i}", part) for i, part in enumerate(parts))
        if isinstance(value, nn.Module) or kind not in vars(types):
            yield kind, type(value)


def _attributes(value: Tensor) -> dict[str, Any]:
    return {name: item for name, item in vars(value).items() if not name.startswith("_dynamo")}
