"""Lines of a trace for passes: definitions and readers of values, and replacement of calls."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.overrides import get_testing_overrides

from switchgear_core import torch_private as internals
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, Symbol
from switchgear_core.ir.trace import Names, Trace, names_of

_COMMUTATIVE = frozenset({"aten.add.Tensor", "aten.mul.Tensor"})
_NOTHING = object()


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Calls that match a pattern.

    Attributes:
        parts: the calls, in order.
        values: the values of the pattern's names.
    """

    parts: tuple[BoundSymbol, ...]
    values: Mapping[str, Any]


class Lines:
    """Index of a trace: the definition and the readers of each value, and the calls that replace others.

    Args:
        trace: the trace of a pass.
    """

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

    def maker(self, value: object) -> BoundSymbol | None:
        """Find the line computing a value.

        Args:
            value: a value of the trace.

        Returns:
            The line; None for an input, and for a value inside a replaced call.
        """
        index = self.place.get(value.name) if isinstance(value, TensorProxy) else None
        return None if index is None or index in self._instead else self.trace.bound_symbols[index]

    def readers(self, value: TensorProxy) -> tuple[BoundSymbol, ...]:
        """Find the readers of a value.

        Args:
            value: a value of the trace.

        Returns:
            The lines, in order.
        """
        return tuple([self.trace.bound_symbols[index] for index in self._readers[value.name]])

    def seen_elsewhere(self, composite: BoundSymbol) -> str:
        """Check whether a composite can replace its last part.

        Args:
            composite: the composite; its subsymbols are lines of the trace.

        Returns:
            The reason against the replacement, or an empty string. No other line may read the values between its parts,
                and no line may read its results before it.
        """
        positions = {self.place[part.outputs[0].name] for part in composite.subsymbols}
        results = {value.name for value in composite.outputs}
        for value in itertools.chain.from_iterable(part.outputs for part in composite.subsymbols):
            others = {*self._readers[value.name]} - positions
            if value.name in results:
                if any(place < max(positions) for place in others):
                    return f"{value.name} is read before all of it is made"
            elif value.name in self._returned:
                return f"{value.name} is returned, or saved"
            elif others:
                return f"{value.name} is read elsewhere too"
        return ""

    def back(self, value: object, through: Collection[str] = ()) -> list[BoundSymbol]:
        """Follow a value backwards.

        Args:
            value: a value of the trace.
            through: names of operators to follow backwards.

        Returns:
            The lines of the computation, in order.
        """
        calls: list[BoundSymbol] = []
        while (call := self.maker(value)) is not None:
            calls.insert(0, call)
            leaf = leaf_of(call)
            if leaf is None or leaf.symbol.name not in through:
                break
            value = leaf.inputs[0]
        return calls

    def match(
        self, call: BoundSymbol, pattern: object, through: Collection[str] = ()
    ) -> Match | None:
        """Match a call, and the calls that compute its arguments, against a pattern.

        Args:
            call: the last call.
            pattern: an operator and its positional arguments: `("aten.mul.Tensor", "x", ("aten.sigmoid.default",
                "x"))`. An argument is a name, for one value wherever it occurs; a number; a pattern; a list of these;
                or an equal object. Sums and products match in either order.
            through: names of operators that may stand before each operator of the pattern.

        Returns:
            The matched calls and the values of the names; None if the pattern does not match.
        """
        match = self._matched(call, pattern, Match((), {}), through)
        if match is None:
            return None
        parts = {self.place[part.outputs[0].name]: part for part in match.parts}
        return Match(tuple([parts[place] for place in sorted(parts)]), match.values)

    def _matched(
        self, call: BoundSymbol, pattern: Any, prefix: Match, through: Collection[str]
    ) -> Match | None:
        leaf = leaf_of(call)
        name, *operands = pattern
        if leaf is None or leaf.symbol.name != name or leaf.kwargs:
            return None
        for args in (leaf.args, leaf.args[::-1]) if name in _COMMUTATIVE else (leaf.args,):
            match = self._all(args, operands, Match((*prefix.parts, call), prefix.values), through)
            if match is not None:
                return match
        return None

    def _all(
        self,
        arguments: Sequence[object],
        operands: Sequence[object],
        prefix: Match,
        through: Collection[str],
    ) -> Match | None:
        match: Match | None = prefix
        for value, operand in itertools.zip_longest(arguments, operands, fillvalue=_NOTHING):
            match = match and self._operand(value, operand, match, through)
        return match

    def _operand(
        self, value: Any, operand: Any, prefix: Match, through: Collection[str]
    ) -> Match | None:
        if isinstance(operand, str):
            same = prefix.values.get(operand, value)
            return Match(prefix.parts, {**prefix.values, operand: value}) if same == value else None
        if isinstance(operand, tuple):
            calls = self.back(value, through)
            inner = Match((*prefix.parts, *calls[1:]), prefix.values)
            return self._matched(calls[0], operand, inner, through) if calls else None
        if isinstance(operand, list) and isinstance(value, (list, tuple)):
            return self._all(value, operand, prefix, through)
        near = isinstance(operand, float) and isinstance(value, (int, float))
        return prefix if (math.isclose(value, operand) if near else value == operand) else None

    def replace(
        self, parts: Sequence[BoundSymbol], call: BoundSymbol, at: BoundSymbol | None = None
    ) -> None:
        """Replace lines by a call.

        Args:
            parts: the lines to remove.
            call: the new call.
            at: the line at whose place it stands, by default the last.
        """
        for part in parts:
            self._instead[self.place[part.outputs[0].name]] = None
        self._instead[self.place[(at or parts[-1]).outputs[0].name]] = call

    def fresh(self, value: TensorProxy) -> TensorProxy:
        """Make a value like another.

        Args:
            value: a value of the trace.

        Returns:
            A copy with an unused name.
        """
        if self._names is None:
            self._names = Names(names_of(self.trace))
        return replace(value, name=self._names.claim(f"{value.name}_"))

    def result(self) -> Trace:
        """Apply the replacements.

        Returns:
            A new trace; the same object without replacements.
        """
        if not self._instead:
            return self.trace
        lines = enumerate(self.trace.bound_symbols)
        body = [self._instead.get(index, item) for index, item in lines]
        symbols = tuple([item for item in body if item is not None])
        return replace(self.trace, bound_symbols=symbols)


def composite(
    symbol: Symbol, args: tuple[object, ...], output: object, parts: Sequence[BoundSymbol]
) -> BoundSymbol:
    """Make a call that stands for others.

    Args:
        symbol: its operation.
        args: its arguments.
        output: its results: the results of the last part.
        parts: the replaced calls: its decomposition. It gets their links and tags, and the source of the last call.

    Returns:
        The call, which is not yet in the trace.
    """
    last = parts[-1]
    links = tuple(dict.fromkeys(link for part in parts for link in part.links))
    tags = frozenset[str]().union(*(part.tags for part in parts))
    parts = tuple(parts)
    return BoundSymbol(symbol, args, {}, output, parts, last.source, last.grad_enabled, tags, links)


def leaf_of(call: BoundSymbol | None) -> BoundSymbol | None:
    """Find the single operator of PyTorch that a call consists of.

    Args:
        call: a call, or None.

    Returns:
        The operator; None if there are several, or for None.
    """
    leaf = call
    while leaf is not None and leaf.subsymbols:
        leaf = leaf.subsymbols[0] if len(leaf.subsymbols) == 1 else None
    return leaf if leaf is not None and call is not None and leaf.output == call.output else None


def argument(call: BoundSymbol, name: str) -> Any:
    """Look up the argument of a call by its parameter.

    Args:
        call: a call of a function of PyTorch or an operator.
        name: the name of a parameter.

    Returns:
        The argument, or the parameter's default.

    Raises:
        TypeError: there is no such parameter.
    """
    if name in call.kwargs:
        return call.kwargs[name]
    names = _parameters(call.symbol.fn)
    if name not in names:
        raise TypeError(f"{call.symbol.name} has no parameter {name!r} (it has {', '.join(names)})")
    place = [*names].index(name)
    return call.args[place] if place < len(call.args) else names[name]


@functools.cache
def _parameters(fn: Callable[..., object]) -> Mapping[str, Any]:
    """Return the parameters of a PyTorch function, with their defaults."""
    if isinstance(fn, internals.OpOverload):
        return {item.name: item.default_value for item in fn._schema.arguments}
    # a C++ function has no signature; its stand-in for tests of overriding has one
    parameters = inspect.signature(get_testing_overrides().get(fn, fn)).parameters.values()
    return {item.name: None if item.default is item.empty else item.default for item in parameters}
