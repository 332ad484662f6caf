"""Which values of a trace share storage."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch

from switchgear.proxy import TensorProxy
from switchgear.symbol import BoundSymbol, proxies
from switchgear.writes import IDENTITY, SET_VALUE


class Storages:
    """The storage that each value lives in, told by the name of the first value there."""

    def __init__(self, bound_symbols: Iterable[BoundSymbol]) -> None:
        self._parents: dict[str, str] = {}
        for bound_symbol in bound_symbols:
            self._enter(bound_symbol)

    def of(self, proxy: TensorProxy) -> str:
        """The name of the value whose storage `proxy` shares; its own if it shares none."""
        name = proxy.name
        while name in self._parents:
            name = self._parents[name]
        return name

    def _enter(self, bound_symbol: BoundSymbol) -> None:
        if bound_symbol.subsymbols:
            for part in bound_symbol.subsymbols:
                self._enter(part)
            return
        source = aliased_argument(bound_symbol)
        if source is not None:
            for proxy in bound_symbol.outputs:
                if proxy.name != source.name:
                    self._parents[proxy.name] = source.name


def aliased_argument(bound_symbol: BoundSymbol) -> TensorProxy | None:
    """The argument of a leaf that its outputs may be views of."""
    if bound_symbol.symbol in (SET_VALUE, IDENTITY):
        return bound_symbol.inputs[-1]
    fn: Any = bound_symbol.symbol.fn
    if not isinstance(fn, torch._ops.OpOverload):
        return None
    position = _aliased_position(fn)
    if position is None or position >= len(bound_symbol.args):
        return None
    return next(proxies(bound_symbol.args[position]), None)


@functools.cache
def _aliased_position(overload: torch._ops.OpOverload) -> int | None:
    if not any(returned.alias_info is not None for returned in overload._schema.returns):
        # these return their argument itself when there is nothing to do
        return 0 if overload in _MAY_ALIAS else None
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None:
            return position
    return None


_aten = torch.ops.aten
_MAY_ALIAS = frozenset({_aten._reshape_alias.default, _aten._unsafe_view.default, _aten.lift_fresh.default})
