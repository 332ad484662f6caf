"""Aliasing: values of a trace that share storage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import AFTER, BoundSymbol, proxies
from switchgear_core.ir.writes import IDENTITY, SET_VALUE

_aten = torch.ops.aten
#: Operators that return their last argument itself, sometimes or always, or views without a mark in the schema.
_MAY_ALIAS = (
    _aten._reshape_alias.default,
    _aten._unsafe_view.default,
    _aten.lift_fresh.default,
    _aten.unsafe_chunk.default,
    _aten.unsafe_split.Tensor,
    _aten.unsafe_split_with_sizes.default,
)
_PASSED_ON = frozenset({*map(str, _MAY_ALIAS), SET_VALUE.name, IDENTITY.name, AFTER.name})


def storages(bound_symbols: Iterable[BoundSymbol]) -> dict[str, str]:
    """Return the values that share a storage with an earlier value.

    Args:
        bound_symbols: the lines of a trace, in order.

    Returns:
        The name of the first value of the storage, by the name of each later one.
    """
    first: dict[str, str] = {}
    for leaf in leaves_of(bound_symbols):
        source = aliased_argument(leaf)
        if source is not None:
            first.update(
                (proxy.name, first.get(source.name, source.name)) for proxy in leaf.outputs
            )
    return first


def aliased_argument(bound_symbol: BoundSymbol) -> TensorProxy | None:
    """Find the argument whose storage the outputs of a leaf may share.

    Args:
        bound_symbol: a leaf.

    Returns:
        The argument; None if there is none.
    """
    if bound_symbol.symbol.name in _PASSED_ON:
        return bound_symbol.inputs[-1]
    return viewed_argument(bound_symbol)


def viewed_argument(bound_symbol: BoundSymbol) -> TensorProxy | None:
    """Return the argument that the outputs of a PyTorch leaf view, by its schema."""
    symbol = bound_symbol.symbol
    entry = _PLACES.get(symbol.name)
    if entry is None or entry[0] is not symbol.fn:
        if not isinstance(symbol.fn, internals.OpOverload):  # keep no user function alive
            return None
        entry = _PLACES[symbol.name] = symbol.fn, _viewed_place(symbol.fn)
    if entry[1] is None:
        return None
    position, name = entry[1]
    args = bound_symbol.args
    argument = args[position] if position < len(args) else bound_symbol.kwargs.get(name)
    return argument if isinstance(argument, TensorProxy) else next(iter(proxies(argument)), None)


def is_view(item: BoundSymbol) -> bool:
    """Check whether the results of a bound symbol share the storage of its argument, and thus its history.

    Excluded is a result that requires grad although its base does not, after a write that autograd did not see.
    Recomputed, it would have no history for a second derivative. Excluded are results of `_unsafe_view` and the like,
    whose versions are their own: a write to one is no write to the base.
    """
    return bool(item.outputs) and all(map(_shares, leaves_of([item])))


def _shares(leaf: BoundSymbol) -> bool:
    base = None if "unsafe" in leaf.symbol.name else aliased_argument(leaf)
    has_history = any(proxy.requires_grad for proxy in leaf.outputs)
    return base is not None and (base.requires_grad or not has_history)


def written_arguments(bound_symbol: BoundSymbol) -> tuple[TensorProxy, ...]:
    """Find the arguments that a leaf mutates, by its schema.

    Args:
        bound_symbol: a leaf.

    Returns:
        The arguments; empty for a function without a schema.
    """
    fn: Any = bound_symbol.symbol.fn
    if not isinstance(fn, internals.OpOverload) or not fn._schema.is_mutable:
        return ()
    args, kwargs = bound_symbol.args, bound_symbol.kwargs
    arguments = enumerate(fn._schema.arguments)
    places = [
        (place, item.name)
        for place, item in arguments
        if item.alias_info and item.alias_info.is_write
    ]
    return tuple(
        proxies([args[place] if place < len(args) else kwargs.get(name) for place, name in places])
    )


def in_place_twin(fn: object) -> internals.OpOverload | None:
    """Return the overload that leaves the result of `fn` in its first argument, by PyTorch's naming convention."""
    if not isinstance(fn, internals.OpOverload):
        return None
    namespace, _, name = fn._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_functional") + "_", None)
    return getattr(packet, _TWIN_OVERLOADS.get(str(fn), fn._overloadname), None)


#: In-place twins with another name of the overload.
_TWIN_OVERLOADS = {"aten.bernoulli.p": "float"}
#: Viewed arguments by name, whose hash costs less than an overload's.
_PLACES: dict[str, tuple[object, tuple[int, str] | None]] = {}


def _viewed_place(overload: internals.OpOverload) -> tuple[int, str] | None:
    if overload._schema.is_mutable and overload.namespace != "aten":
        return None  # the arguments that it returns are no outputs of its line
    if all(returned.alias_info is None for returned in overload._schema.returns):
        return None
    arguments = enumerate(overload._schema.arguments)
    return next(
        ((position, item.name) for position, item in arguments if item.alias_info is not None), None
    )
