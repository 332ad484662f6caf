"""The choice of the tensors saved by a forward for its backward: the protocol, and the default."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

import torch

from switchgear_core.ir.aliasing import is_view
from switchgear_core.ir.proxy import TensorProxy, is_dense
from switchgear_core.ir.symbol import RECOMPUTE, BoundSymbol, RuleOrigin, policy_of
from switchgear_core.ir.trace import Names, Trace
from switchgear_core.ir.writes import WritingOperator

Body: TypeAlias = tuple[BoundSymbol, ...]
_SAME = "memory='eager' saves the same values as eager"
_AS_STRIDED = torch.ops.aten.as_strided.default


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A differentiated trace whose backward reads values of its forward.

    Attributes:
        trace: the joint trace; its inputs are alive during the backward.
        count: the number of the forward's outputs; the other outputs of the joint trace are gradients.
        forward: the lines of the forward.
        later: the lines of the backward.
        read: the values of the forward, inputs included, read by the backward.
        overwritten: the names of the values saved as copies, because the call overwrites them.
        residuals: the values that grad rules chose to save, by name, with the rules.
        names: the source of names for new values.
        fuses: whether an executor of the call fuses lines.
        eager_bytes: returns the bytes saved by eager mode, without inputs.
    """

    trace: Trace
    count: int
    forward: Body
    later: Body
    read: tuple[TensorProxy, ...]
    overwritten: frozenset[str]
    residuals: Mapping[str, RuleOrigin]
    names: Names
    fuses: bool
    eager_bytes: Callable[[], int]


@dataclass(frozen=True, slots=True, eq=False)
class Saving:
    """A choice of saved values; the backward recomputes all others that it reads, except inputs.

    Attributes:
        saved: the names of the saved values, random numbers included.
        body: the lines that recompute; they compute all values of the forward.
        reason: returns why a value is saved, from the value and the line that computes it.
        packed: for a value saved in another form, by name, the packing line and the unpacking line.
    """

    saved: frozenset[str]
    body: Body
    reason: Callable[[TensorProxy, BoundSymbol], str]
    packed: Mapping[str, tuple[BoundSymbol, BoundSymbol]] = field(default_factory=dict)


class Savings(Protocol):
    """A way to choose the saved values."""

    @property
    def option(self) -> object:
        """The value of the option `memory` for the choice."""

    @property
    def is_eager_unfused(self) -> bool:
        """Whether the choice saves the same values as eager mode where no executor fuses."""

    def choose(self, problem: Problem) -> Saving:
        """Choose the saved values of a forward.

        Args:
            problem: the joint trace, and the values that its backward reads.

        Returns:
            The names of the saved values, with the reasons.
        """


def is_recomputed(item: BoundSymbol, result: TensorProxy) -> bool:
    """Check whether a tag says that the backward recomputes a result, and it can."""
    return policy_of(item, result) == RECOMPUTE and not why_once(item)


def why_once(item: BoundSymbol) -> str:
    """Return why a line runs only once, whatever its tags say; empty if it may run again."""
    if item.is_random:
        return "it draws random numbers"
    if isinstance(item.symbol.fn, WritingOperator) or item.stays:
        return "it writes to its arguments, or has another effect"
    return ""


@dataclass(frozen=True, slots=True)
class AsEager:
    """Saves the values read by the backward, as eager mode does; a view is recomputed from its base.

    Of an overwritten base and its views, the smaller copies are saved. Tagged results are recomputed, if `heeds_tags`.
    """

    heeds_tags: bool = True

    option = "eager"
    is_eager_unfused = True

    def choose(self, problem: Problem) -> Saving:
        """Choose the saved values of a forward."""
        required = {proxy.name for proxy in problem.read}
        saved: set[str] = set()
        # for each overwritten base, the copies sufficient for its views, with their bytes
        copies: defaultdict[str, dict[str, int]] = defaultdict(dict)
        inputs = [(p, None) for p in problem.trace.inputs if p.name in problem.overwritten]
        computed = [(p, item) for item in reversed(problem.forward) for p in item.outputs]
        for proxy, item in (*computed, *inputs):
            name = proxy.name
            if name not in required and name not in copies:
                continue
            bases = _bases(item, problem.overwritten)
            # a copy of a view with holes would have another layout, and thus other rounding
            may_save = not bases or (name in problem.overwritten and is_dense(proxy))
            if self.heeds_tags and item is not None and is_recomputed(item, proxy):
                bases = tuple([argument.name for argument in item.inputs])
                may_save = not bases
            least = copies.pop(name, {})
            if name in required and not may_save:
                required.update(bases)
                continue
            if name in required or (may_save and proxy.bytes < sum(least.values())):
                least = {name: proxy.bytes}
            if bases:
                copies[next(base for base in bases if base in problem.overwritten)].update(least)
            else:
                saved.update(least)
        return Saving(frozenset(saved), problem.forward, partial(_reason, problem.residuals))


#: The default.
AS_EAGER = AsEager()
#: The values that eager mode itself saves.
OF_EAGER = AsEager(heeds_tags=False)


def _bases(item: BoundSymbol | None, overwritten: Set[str]) -> tuple[str, ...]:
    """Return the names of the arguments from which a view is recomputed; empty for other lines."""
    if item is None or not is_view(item):
        return ()
    if item.symbol.fn is _AS_STRIDED and not overwritten.isdisjoint(p.name for p in item.outputs):
        return ()  # its place in memory differs from the copy's
    return tuple([proxy.name for proxy in item.inputs])


def _reason(residuals: Mapping[str, RuleOrigin], proxy: TensorProxy, _: BoundSymbol) -> str:
    rule = residuals.get(proxy.name)
    return f"the rule of {rule} keeps it" if rule else _SAME
