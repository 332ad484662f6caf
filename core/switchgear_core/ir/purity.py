"""Pure calls: calls that return the same value for the same arguments."""

from __future__ import annotations

import functools
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.proxy import TensorProxy, key_of
from switchgear_core.ir.symbol import CUSTOM_FUNCTION, BoundSymbol

_IMPURE_TAGS = frozenset(
    {
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
    }
)


def is_pure(item: BoundSymbol) -> bool:
    """Check whether a call has only PyTorch operators that neither write, draw, nor return uninitialised memory.

    Operators from elsewhere count as impure: their other effects are unknown.
    """
    if item.is_random or CUSTOM_FUNCTION in item.tags:
        return False
    return all(
        _is_pure(fn) and not is_random(fn, leaf.args, leaf.kwargs)  # type: ignore[arg-type]
        for leaf in leaves_of([item])
        for fn in (leaf.symbol.fn,)
    )


def is_random(
    overload: internals.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """Check whether an overload draws random numbers; attention is tagged so, but draws for dropout alone.

    Communication with other processes counts too: like a draw, it runs once, in order, whether or not it is read.
    """
    if not _may_draw(overload):
        return False
    if overload.namespace == "_c10d_functional":
        return True
    arguments = overload._schema.arguments
    values = {argument.name: argument.default_value for argument in arguments}
    values |= {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    return {**values, **kwargs}.get("dropout_p") != 0.0


@functools.cache
def _may_draw(overload: internals.OpOverload) -> bool:
    communicates = overload.namespace == "_c10d_functional"
    return communicates or torch.Tag.nondeterministic_seeded in overload.tags


@functools.cache
def _is_pure(fn: object) -> bool:
    if not isinstance(fn, internals.OpOverload) or fn.namespace != "aten" or fn._schema.is_mutable:
        return False
    return not _is_empty(fn) and _IMPURE_TAGS.isdisjoint(fn.tags)


def _is_empty(fn: object) -> bool:
    """Check whether an operator returns uninitialised memory."""
    return isinstance(fn, internals.OpOverload) and fn._opname.startswith(("empty", "new_empty"))


def uninitialised(items: Iterable[BoundSymbol]) -> set[str]:
    """Return the names of the values computed from uninitialised memory."""
    names = set[str]()
    for item in leaves_of(items):
        if _is_empty(item.symbol.fn) or not names.isdisjoint(proxy.name for proxy in item.inputs):
            names.update(proxy.name for proxy in item.outputs)
    return names


def call_key(item: BoundSymbol) -> object:
    """Return operator and arguments as a dictionary key: proxies by name, numbers also by type; None if unhashable."""
    # the parts of a composite may depend on a global mode
    parts = [
        (leaf.symbol.name, *[proxy.dtype for proxy in leaf.outputs])
        for leaf in leaves_of(item.subsymbols)
    ]
    key = item.symbol.name, frozen(item.args), frozen(dict(item.kwargs)), tuple(parts)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def frozen(
    value: object, proxy_key: Callable[[TensorProxy], object] = operator.attrgetter("name")
) -> object:
    """Return nested arguments as a dictionary key: proxies by name, or by `proxy_key`, numbers also by type."""
    if isinstance(value, TensorProxy):
        return (TensorProxy, proxy_key(value))
    if isinstance(value, (tuple, list)):
        return (type(value), *[frozen(item, proxy_key) for item in value])
    if isinstance(value, dict):
        return tuple([(name, frozen(item, proxy_key)) for name, item in value.items()])
    if isinstance(value, internals.SYMBOLIC):
        return key_of(value)
    # 0.0 differs from -0.0, and nan equals nan, NumPy's too
    return (
        type(value),
        value if isinstance(value, int) or not isinstance(value, numbers.Number) else repr(value),
    )
