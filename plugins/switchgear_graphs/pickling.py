"""Traces as bytes: pickles in which PyTorch's operators, which do not pickle, stand by name."""

from __future__ import annotations

import io
import pickle
from dataclasses import fields
from typing import Any

from switchgear_core import torch_private as internals
from switchgear_core.ir.printing import object_at
from switchgear_core.ir.symbol import Symbol
from switchgear_core.ir.trace import Trace


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


def pickled(trace: Trace) -> tuple[object, ...]:
    """Return the result of `__reduce__` for a trace."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump([getattr(trace, item.name) for item in fields(trace)])
    return _unpickled, (buffer.getvalue(),)


def _unpickled(data: bytes) -> Trace:
    return Trace(*pickle.loads(data))
