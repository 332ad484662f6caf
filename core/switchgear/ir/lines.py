"""Lines: what a pass asks about the lines of a trace, and how it puts calls in the place of others."""

from __future__ import annotations

import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import get_testing_overrides

from switchgear.ir.proxy import TensorProxy
from switchgear.ir.symbol import BoundSymbol, Symbol
from switchgear.ir.trace import Names, Trace, names_of


class Lines:
    """The lines of a trace: who makes and who reads a value, and what is to stand in their place."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.place: dict[str, int] = {}
        self._readers: defaultdict[str, list[int]] = defaultdict(list)
        self._returned = {proxy.name for proxy in trace.outputs if proxy is not None}
        self._instead: dict[int, BoundSymbol | None] = {}
        self._names: Names | None = None
        for index, item in enumerate(trace.bound_symbols):
            self.place.update((proxy.name, index) for proxy in item.outputs)
            for name in dict.fromkeys(proxy.name for proxy in item.inputs):
                self._readers[name].append(index)

    def maker(self, value: Any) -> BoundSymbol | None:
        """The line that makes a value; None for an input, and for one that has become part of another."""
        index = self.place.get(value.name) if isinstance(value, TensorProxy) else None
        return None if index is None or index in self._instead else self.trace.bound_symbols[index]

    def readers(self, value: TensorProxy) -> tuple[BoundSymbol, ...]:
        """The lines that read a value, in order."""
        return tuple([self.trace.bound_symbols[index] for index in self._readers[value.name]])

    def seen_elsewhere(self, value: TensorProxy) -> str:
        """Why a value that one line reads must exist, or an empty string."""
        if value.name in self._returned:
            return f"{value.name} is returned, or saved"
        return f"{value.name} is read elsewhere too" if len(self._readers[value.name]) > 1 else ""

    def replace(
        self, parts: Sequence[BoundSymbol], call: BoundSymbol, at: BoundSymbol | None = None
    ) -> None:
        """Have a call stand at the place of one of these lines, by default the last, and nothing at the others'."""
        for part in parts:
            self._instead[self.place[part.outputs[0].name]] = None
        self._instead[self.place[(at or parts[-1]).outputs[0].name]] = call

    def fresh(self, value: TensorProxy) -> TensorProxy:
        """A value like another, of a name that the trace does not use."""
        if self._names is None:
            self._names = Names(names_of(self.trace))
        return replace(value, name=self._names.claim(f"{value.name}_"))

    def result(self) -> Trace:
        """The trace with what stands instead; the very trace where nothing does."""
        if not self._instead:
            return self.trace
        lines = enumerate(self.trace.bound_symbols)
        body = [self._instead.get(index, item) for index, item in lines]
        kept = tuple([item for item in body if item is not None])
        return replace(self.trace, bound_symbols=kept)


def composite(
    symbol: Symbol, args: tuple[Any, ...], output: Any, parts: Sequence[BoundSymbol]
) -> BoundSymbol:
    """A call that stands for others: they are its decomposition; it has their links and tags, and the last's line."""
    last = parts[-1]
    links = tuple(dict.fromkeys(link for part in parts for link in part.links))
    tags = frozenset[str]().union(*(part.tags for part in parts))
    parts = tuple(parts)
    return BoundSymbol(symbol, args, {}, output, parts, last.source, last.grad_enabled, tags, links)


def leaf_of(call: BoundSymbol) -> BoundSymbol | None:
    """The one operator of PyTorch that a call comes to, if there is just one."""
    leaf = call
    while leaf.subsymbols:
        if len(leaf.subsymbols) > 1:
            return None
        (leaf,) = leaf.subsymbols
    return leaf if leaf.output == call.output else None


def argument(call: BoundSymbol, name: str) -> Any:
    """What a call gives for a parameter of its symbol, or the default; `TypeError` where it has none of that name."""
    if name in call.kwargs:
        return call.kwargs[name]
    names = _parameters(call.symbol.fn)
    if name not in names:
        raise TypeError(f"{call.symbol.name} has no parameter {name!r} (it has {', '.join(names)})")
    place = [*names].index(name)
    return call.args[place] if place < len(call.args) else names[name]


@functools.cache
def _parameters(fn: Callable[..., Any]) -> Mapping[str, Any]:
    """The parameters of a function of PyTorch's and their defaults."""
    if isinstance(fn, torch._ops.OpOverload):
        return {item.name: item.default_value for item in fn._schema.arguments}
    # a function of C++ has no signature; its stand-in for tests of overriding has
    parameters = inspect.signature(get_testing_overrides().get(fn, fn)).parameters.values()
    return {one.name: None if one.default is one.empty else one.default for one in parameters}
