"""The function of PyTorch that is called in an overload's place: where that is the very same call, it costs less."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from . import torch_internals as internals
from .proxy import TensorProxy, hint_of
from .sizes import map_numbers
from .symbol import map_proxies, proxies

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


def spelling(overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The path of a function that dispatches to `overload` with these very arguments, found out by calling it."""
    # which overload a function picks depends on no size
    given = map_numbers(hint_of, (args, dict(kwargs)))
    # a function without tensors is one that a default device changes
    if overload.namespace != "aten" or not proxies(given):
        return None
    key = (overload, _kind(given))
    if key not in _KEPT:
        if len(_KEPT) == _KEPT_LIMIT:
            _KEPT.clear()
        _KEPT[key] = next((path for path, fn in _candidates(overload) if _is_same_call(fn, overload, *given)), None)
    return _KEPT[key]


def _kind(value: Any) -> Any:
    """What a function may pick an overload by, hashable."""
    if isinstance(value, TensorProxy):
        return value.layout
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_kind, value))
    if isinstance(value, dict):
        return tuple([(name, _kind(item)) for name, item in value.items()])
    return type(value) if isinstance(value, _BY_TYPE) else value


@functools.cache
def _candidates(overload: torch._ops.OpOverload) -> tuple[tuple[str, Callable[..., Any]], ...]:
    name = overload._schema.name.partition("::")[2]
    found = ((f"{place}.{name}", getattr(module, name, None)) for place, module in _PLACES)
    return tuple([(path, fn) for path, fn in found if isinstance(fn, _IN_C)])


def _is_same_call(
    fn: Callable[..., Any], overload: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    made: dict[str, torch.Tensor] = {}

    def example(proxy: TensorProxy) -> torch.Tensor:
        if proxy.name not in made:
            made[proxy.name] = internals.make_meta(proxy)
        return made[proxy.name]

    args, kwargs = map_proxies(example, (args, kwargs))
    reached = internals.first_dispatched(fn, args, kwargs)
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
