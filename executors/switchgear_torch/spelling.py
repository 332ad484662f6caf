"""The function of PyTorch that is called in an overload's place: where that is the very same call, it costs less."""

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

#: Where such functions live; those written in Python are left out, for they do more than one call.
_PLACES: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("torch.Tensor", torch.Tensor),
)
_IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType)
#: Arguments whose value has no part in which overload a function picks.
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
    """The path of a function that dispatches to `overload` with these very arguments, found out by calling it.

    Which overload a function picks depends on no size, so symbolic ones are taken as `hint` says.
    """
    given = args, dict(kwargs)
    # a function without tensors is one that a default device changes
    if overload.namespace != "aten" or not _holds_tensor(given):
        return None
    key = (overload, _kind(given))
    if key not in _KEPT:
        if len(_KEPT) == _KEPT_LIMIT:
            _KEPT.clear()
        example = _Example(hint)
        given = example.of(args), example.of(dict(kwargs))
        _KEPT[key] = next((path for path, fn in _candidates(overload) if _is_same_call(fn, overload, *given)), None)
    return _KEPT[key]


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_holds_tensor, value))
    return _holds_tensor([*value.values()]) if isinstance(value, dict) else isinstance(value, sg.TensorProxy)


def _kind(value: Any) -> Any:
    """What a function may pick an overload by, hashable."""
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
    """Arguments to call with: for each tensor one without data, for each symbolic number what it is at hand."""

    def __init__(self, hint: Callable[[Any], Any]) -> None:
        self._hint = hint
        self._tensors: dict[str, torch.Tensor] = {}

    def of(self, value: Any) -> Any:
        """What stands for a nest of arguments."""
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
    found = ((f"{place}.{name}", getattr(module, name, None)) for place, module in _PLACES)
    return tuple([(path, fn) for path, fn in found if isinstance(fn, _IN_C)])


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


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    return type(one) is type(other) and repr(one) == repr(other)
