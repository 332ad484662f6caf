"""Traces as bytes: pickles in which PyTorch's operators, which do not pickle, stand by name."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from switchgear_core import torch_private as internals
from switchgear_core.ir.printing import object_at
from switchgear_core.ir.symbol import Symbol


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, internals.OpOverload):
            return object_at, (f"torch.ops.{value}",)
        if isinstance(value, Symbol) and _symbol(value.name).fn is value.fn:
            return _symbol, (value.name,)
        return NotImplemented


def _symbol(name: str) -> Symbol:
    """Return a symbol by name: `DEL` and the like are compared by identity; functions of PyTorch may not pickle."""
    return object_at(f"{Symbol.__module__}.{name.upper()}") or Symbol(name, object_at(name))


def pickled(kind: Callable[..., Any], fields: tuple[object, ...]) -> tuple[object, ...]:
    """Return what `__reduce__` returns for an object of a class with some fields."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(fields)
    return _unpickled, (kind, buffer.getvalue())


def _unpickled(kind: Callable[..., Any], data: bytes) -> Any:
    return kind(*pickle.loads(data))
