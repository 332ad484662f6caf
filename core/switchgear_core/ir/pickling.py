"""Traces as bytes: pickles in which PyTorch's operators, which do not pickle, stand by name."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

from switchgear_core import torch_private as internals
from switchgear_core.ir.printing import object_at
from switchgear_core.ir.symbol import Symbol

#: Paths of objects that traces compare by identity.
_UNIQUE = (
    *("switchgear_core.ir.symbol.DEL", "switchgear_core.ir.symbol.BOX"),
    *("switchgear_core.ir.symbol.AFTER", "switchgear_core.ir.printing.BOXED"),
)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, internals.OpOverload):
            return object_at, (f"torch.ops.{value}",)
        # a function of PyTorch may have the name of another: that of `__pow__` is called `pow`
        if isinstance(value, Symbol) and object_at(value.name) is value.fn:
            return _symbol, (value.name,)
        path = next((path for path in _UNIQUE if object_at(path) is value), None)
        return NotImplemented if path is None else (object_at, (path,))


def _symbol(name: str) -> Symbol:
    return Symbol(name, object_at(name))


def pickled(kind: Callable[..., Any], fields: tuple[object, ...]) -> tuple[object, ...]:
    """Return what `__reduce__` returns for an object of a class with some fields."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(fields)
    return _unpickled, (kind, buffer.getvalue())


def _unpickled(kind: Callable[..., Any], data: bytes) -> Any:
    return kind(*pickle.loads(data))
