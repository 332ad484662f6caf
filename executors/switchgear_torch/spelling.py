"""Spelling: a PyTorch function called in place of an overload costs less, if it makes the very same call."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

import switchgear as sg

from .internals import first_dispatched, make_meta

#: Places of such functions; functions in Python are left out, because they make more than one call.
_PLACES: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.Tensor", torch.Tensor),
)
_IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType)
#: Types of arguments whose value does not influence the choice of overload.
_BY_TYPE = (bool, int, float, complex, torch.Generator)
_KEPT: dict[Any, str | None] = {}
_KEPT_LIMIT = 10_000


def spell(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Give every overload that PyTorch runs the path of such a function, if there is one."""
    body = tuple([_spelled(line, context) for line in trace.bound_symbols])
    unchanged = all(map(operator.is_, body, trace.bound_symbols))
    return trace if unchanged else replace(trace, bound_symbols=body)


def _spelled(line: sg.BoundSymbol, context: sg.passes.PassContext) -> sg.BoundSymbol:
    implementation = line.implementation
    if implementation is None or not isinstance(implementation.fn, torch._ops.OpOverload):
        return line
    path = spelling(implementation.fn, line.args, line.kwargs, context.hint)
    return line if path is None else line.with_implementation(replace(implementation, path=path))


def spelling(
    overload: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    hint: Callable[[Any], Any] = lambda number: number,
) -> str | None:
    """Return the path of a function that dispatches to `overload` with the given arguments, found by calling it.

    The choice of overload depends on no size, so symbolic sizes are replaced by their `hint`.
    """
    arguments = args, dict(kwargs)
    # a default device changes functions without tensors
    if overload.namespace != "aten" or not _holds_tensor(arguments):
        return None
    key = (overload, _kind(arguments))
    if key not in _KEPT:
        if len(_KEPT) == _KEPT_LIMIT:
            _KEPT.clear()
        example = _Example(hint)
        arguments = example.of(args), example.of(dict(kwargs))
        _KEPT[key] = next((path for path, fn in _candidates(overload) if _is_same_call(fn, overload, *arguments)), None)
    return _KEPT[key]


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_tensor, value))
    return _holds_tensor([*value.values()]) if isinstance(value, dict) else isinstance(value, sg.TensorProxy)


def _kind(value: Any) -> Any:
    """Return the properties by which a function may choose an overload, hashable."""
    if isinstance(value, sg.TensorProxy):
        return value.layout
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_kind, value))
    if isinstance(value, dict):
        return tuple([(name, _kind(item)) for name, item in value.items()])
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return int if isinstance(value, torch.SymInt) else float
    return type(value) if isinstance(value, _BY_TYPE) else value


class _Example:
    """Arguments for a trial call: tensors without data, and current values of symbolic numbers."""

    def __init__(self, hint: Callable[[Any], Any]) -> None:
        self._hint = hint
        self._tensors: dict[str, torch.Tensor] = {}

    def of(self, value: Any) -> Any:
        """Return the trial arguments for nested arguments."""
        if isinstance(value, sg.TensorProxy):
            if value.name not in self._tensors:
                self._tensors[value.name] = make_meta(value, self.of(value.shape), self.of(value.stride))
            return self._tensors[value.name]
        if isinstance(value, (tuple, list)):
            return type(value)([self.of(item) for item in value])
        if isinstance(value, dict):
            return {name: self.of(item) for name, item in value.items()}
        return self._hint(value) if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value


@functools.cache
def _candidates(overload: torch._ops.OpOverload) -> tuple[tuple[str, Callable[..., Any]], ...]:
    name = overload._schema.name.partition("::")[2]
    entries = ((f"{place}.{name}", getattr(module, name, None)) for place, module in _PLACES)
    return tuple([(path, fn) for path, fn in entries if isinstance(fn, _IN_C)])


def _is_same_call(
    fn: Callable[..., Any], overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    reached = first_dispatched(fn, args, kwargs)
    return (
        reached is not None
        and reached[0] is overload
        and _same(_by_name(overload, args, kwargs), _by_name(overload, *reached[1:]))
    )


def _by_name(overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    declared = overload._schema.arguments
    defaults = {argument.name: argument.default_value for argument in declared if argument.has_default_value()}
    positional = zip((argument.name for argument in declared), args, strict=False)
    return defaults | dict(positional) | kwargs


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)
    if isinstance(first, (tuple, list)) and isinstance(second, (tuple, list)):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        return first is second
    return type(first) is type(second) and repr(first) == repr(second)
