"""Parcels: a trace as bytes, for another process to compile.

A trace travels as operators and layouts: without links, choices, sources and the data of constants. Objects that the
other process cannot find by name (a generator, a closure, a user's operator) are replaced by placeholders; no executor
compiles such objects.
"""

from __future__ import annotations

import io
import operator
import pickle
import types
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import torch

from switchgear_core import own
from switchgear_core import torch_private as internals
from switchgear_core.ir.proxy import NumberProxy, TensorProxy, hint_of
from switchgear_core.ir.symbol import BoundSymbol, Symbol, changed
from switchgear_core.ir.trace import Trace
from switchgear_core.record.sizes import Sizes, active_sizes, symbolic

#: Types for pickle alone: all their contents are inspected in turn.
_PLAIN = frozenset(
    {
        *(TensorProxy, NumberProxy, BoundSymbol, slice, type(Ellipsis)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    }
)
_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    type,
)


class Unsent:
    """The placeholder for a value left out of a parcel."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def _unsent(*args: object, **kwargs: object) -> object:
    """Raise `NotImplementedError`: the placeholder for a function left out of a parcel, never called."""
    raise NotImplementedError("a function that stayed in another process")


def pack(trace: Trace) -> bytes:
    """Return the trace and the active symbolic sizes as bytes."""
    sizes = active_sizes()
    hints = [hint_of(sizes.symbols[number.name]) for number in sizes.numbers] if sizes else []
    body = tuple([_bare(item) for item in trace.bound_symbols])
    tensors = dict.fromkeys(trace.tensors, torch.empty(0))
    bare = replace(trace, bound_symbols=body, tensors=tensors, provenance=())
    buffer = io.BytesIO()
    _Pickler(buffer).dump((sizes.numbers if sizes else [], hints))
    _Pickler(buffer).dump(bare)
    return buffer.getvalue()


def unpack(parcel: bytes) -> tuple[Trace, Sizes | None]:
    """Return the trace given to `pack`, and the sizes that own its symbolic sizes."""
    buffer = io.BytesIO(parcel)
    numbers, hints = pickle.load(buffer)
    if not numbers:
        return _Unpickler(buffer, {}).load(), None
    sizes = Sizes()
    with symbolic(sizes):
        for number, hint in zip(numbers, hints, strict=True):
            sizes.symbols[number.name] = internals.new_size(sizes.env, number.source, hint)
            sizes.numbers.append(number)
        return _Unpickler(buffer, sizes.symbols).load(), sizes


def _bare(item: BoundSymbol) -> BoundSymbol:
    parts = tuple([_bare(part) for part in item.subsymbols])
    return changed(item, kwargs=dict(item.kwargs), links=(), choices=(), source=None, subsymbols=parts)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        if isinstance(value, internals.SYMBOLIC):
            return internals.python_of_number(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN or issubclass(kind, (frozenset, set)):
            return NotImplemented
        if kind is Trace:
            return Trace, tuple([getattr(value, item.name) for item in fields(value)])
        if kind is Symbol:
            return Symbol, (value.name, value.fn, None, None, value.effect)
        if isinstance(value, internals.OpOverload):
            return _overload, (str(value),)
        if isinstance(value, _FUNCTIONS):
            return NotImplemented if _is_found(value) else (_stand_in, ())
        return Unsent, (kind.__qualname__,)


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, symbols: Mapping[str, torch.SymInt]) -> None:
        super().__init__(buffer)
        self._scope = {"torch": torch, **symbols}

    def persistent_load(self, text: Any) -> object:
        return eval(text, dict(self._scope))


def _overload(name: str) -> object:
    try:
        return operator.attrgetter(name)(torch.ops)
    except AttributeError:  # registered in the other process alone
        return _unsent


def _stand_in() -> object:
    return _unsent


_FOUND = own.PACKAGES | {__package__, "torch", "builtins", "math", "operator"}


def _is_found(function: object) -> bool:
    """Check whether another process finds a function by name, in a module of PyTorch or Switchgear."""
    module = getattr(function, "__module__", None) or getattr(getattr(function, "__objclass__", None), "__module__", "")
    if str(module).partition(".")[0] not in _FOUND:
        return False
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True
