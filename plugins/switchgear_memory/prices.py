"""Prices: the values saved by the forward, and the values recomputed by the backward, by a minimum cut.

Both are priced in bytes moved. Inputs are free, because they are alive anyway. Views are always recomputed, so one
tensor of each storage is saved. Pointwise operators, casts, copies, factories, reductions and normalisations may be
recomputed, and under a budget all pure operators; random numbers and operators from outside of PyTorch never. A
recomputed line reads the same values; its inputs must not be overwritten before the backward.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from switchgear_core.ir.aliasing import is_view
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.proxy import TensorProxy, bytes_of, is_dense
from switchgear_core.ir.purity import is_pure
from switchgear_core.ir.symbol import OFFLOAD, SAVE, BoundSymbol, policy_of, proxies, region_of
from switchgear_core.ir.writes import DRAW_BERNOULLI
from switchgear_core.registry.savings import Body, Problem, is_recomputed
from switchgear_memory.costs import cost, is_a_pass, weight_of
from switchgear_memory.min_cut import SINK, SOURCE, min_cut

#: The limit on bytes moved by recomputation for each unsaved byte.
_WORTH = 16

_aten = torch.ops.aten
#: Operators that draw only zeros and ones.
_COINS = frozenset({_aten.bernoulli.default, _aten.bernoulli.p, _aten.bernoulli.Tensor, DRAW_BERNOULLI.fn})


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """The prices of saving a value, and of running a bound symbol again, in bytes moved.

    `fused`: a line that reads its arguments once more is not recomputed, and other lines cost next to nothing.
    `returned` names the results of the forward, which its caller may hold anyway; `overwritten` the values that are
    saved as copies. With a budget (`is_budget`) every pure line has a price; `transient` names values that the forward
    itself lacks.
    """

    fused: bool
    returned: frozenset[str]
    overwritten: frozenset[str]
    is_budget: bool = False
    transient: frozenset[str] = frozenset()

    @classmethod
    def of(cls, problem: Problem, body: Body, fused: bool = False, is_budget: bool = False) -> Prices:
        """Return the prices of a problem, where the lines of `body` may run again."""
        returned = frozenset(proxy.name for proxy in proxies(problem.trace.outputs[: problem.count]))
        transient = _names(body) - _names(problem.forward)
        return cls(fused, returned, problem.overwritten, is_budget, transient)

    def saving(self, proxy: TensorProxy, maker: BoundSymbol | None) -> int | None:
        """Return the price of saving a value; None if impossible, or if its base is saved instead."""
        if proxy.name in self.transient or (maker is not None and is_recomputed(maker, proxy)):
            return None
        if maker is not None and is_view(maker) and not self._is_copied(proxy, maker):
            return None
        if maker is not None and self.narrows(proxy, maker):
            flags = self.held(proxy, maker)
            return flags * _WORTH + 2 * (flags + bytes_of(proxy))
        return bytes_of(proxy) * _WORTH // (64 if proxy.name in self.returned else 1)

    def _is_copied(self, proxy: TensorProxy, maker: BoundSymbol) -> bool:
        """Check whether a copy of a view is saved: for a view with holes the layout would change, and thus rounding."""
        remade = maker.symbol.fn is not _aten.as_strided.default
        return proxy.name in self.overwritten and (is_dense(proxy) or not remade)

    def held(self, proxy: TensorProxy, maker: BoundSymbol) -> int:
        """Return the bytes that a value takes when saved."""
        return bytes_of(proxy) // (proxy.dtype.itemsize if self.narrows(proxy, maker) else 1)

    def narrows(self, proxy: TensorProxy, maker: BoundSymbol) -> bool:
        """Check whether a value holds only zeros and ones and is worth saving as booleans."""
        may_narrow = maker.symbol.fn in _COINS and proxy.name not in self.returned
        return may_narrow and proxy.dtype.itemsize > 1 and not proxy.requires_grad and is_dense(proxy)

    def reason(self, proxy: TensorProxy, maker: BoundSymbol) -> str:
        """Return why a value is saved."""
        price = self.recompute_price(maker)
        reason = price if isinstance(price, str) else "recomputing costs more"
        return f"{reason}; its zeros and ones are saved as booleans" if self.narrows(proxy, maker) else reason

    def recompute_price(self, item: BoundSymbol) -> int | str:
        """Return the price of running a bound symbol again, or the reason against it."""
        if is_view(item):
            geometry = item.symbol.fn is _aten.as_strided.default
            copied = geometry and any(proxy.name in self.overwritten for proxy in item.outputs)
            return "its place in memory is not that of the copy" if copied else 0
        if any(is_recomputed(item, proxy) for proxy in item.outputs):
            return int(cost([item], fused=self.fused))
        if item.is_random:
            return "it draws random numbers"
        if region_of(item):
            return "a region of torch.utils.checkpoint says so"
        policies = [policy_of(item, proxy) for proxy in item.outputs]
        if SAVE in policies or OFFLOAD in policies:
            return "its tag says so"
        if self.is_budget:
            return (
                int(cost([item], fused=self.fused))
                if is_pure(item)
                else f"{item.symbol.name} may do otherwise when it runs again"
            )
        price = 0
        for leaf in leaves_of([item]):
            weight = weight_of(leaf)
            if weight is None:
                return f"{leaf.symbol.name} is not cheap"
            if self.fused and is_a_pass(leaf):
                return f"{leaf.symbol.name} would go over its arguments once more"
            price += weight * bytes_of(*leaf.inputs, *leaf.outputs)
        return price


def _names(body: Body) -> frozenset[str]:
    return frozenset(proxy.name for item in body for proxy in item.outputs)


def _is_free(proxy: TensorProxy, maker: BoundSymbol, prices: Prices) -> bool:
    is_one = is_view(maker) and len(maker.inputs) == 1
    return is_one and prices.recompute_price(maker) == 0 and prices.saving(proxy, maker) is None


def to_save(forward: Iterable[BoundSymbol], read: Iterable[TensorProxy], prices: Prices) -> frozenset[str]:
    """Return the names of the values to save, so that `read` values can be computed at the lowest price.

    Inputs of the forward are excluded because they are alive anyway, except overwritten inputs.
    """
    maker = {proxy.name: item for item in forward for proxy in item.outputs}
    numbers = itertools.count(2)
    nodes: dict[str | BoundSymbol, int] = {}
    arcs: dict[tuple[int, int], int | None] = {}

    def resolve(proxies: Iterable[TensorProxy]) -> Iterator[TensorProxy]:
        """Yield the values that are not alive anyway; a free view is replaced by its base."""
        for proxy in proxies:
            item = maker.get(proxy.name)
            while item is not None and _is_free(proxy, item, prices):
                (proxy,) = item.inputs
                item = maker.get(proxy.name)
            if item is not None or proxy.name in prices.overwritten:
                yield proxy

    pending = [*resolve(read)]
    # a value is an arc, from its node to the next number; a bound symbol is a node
    ends = [proxy.name for proxy in pending]
    if not ends:
        return frozenset()
    while pending:
        proxy = pending.pop()
        if proxy.name in nodes:
            continue
        item = maker.get(proxy.name)
        node = nodes[proxy.name] = next(numbers)
        arcs[node, next(numbers)] = prices.saving(proxy, item)
        price = "an input" if item is None else prices.recompute_price(item)
        if item is None or isinstance(price, str):
            arcs[SOURCE, node] = None
            continue
        if item not in nodes:
            nodes[item] = next(numbers)
            arcs[SOURCE, nodes[item]] = price
        arcs[nodes[item], node] = None
        pending.extend(resolve(item.inputs))
    arcs.update(((nodes[name] + 1, SINK), None) for name in ends)
    lines = [(key, node) for key, node in nodes.items() if isinstance(key, BoundSymbol)]
    arcs.update(((nodes[p.name] + 1, node), None) for item, node in lines for p in resolve(item.inputs))
    later = min_cut(arcs)
    values = ((key, node) for key, node in nodes.items() if isinstance(key, str))
    return frozenset(name for name, node in values if node not in later and node + 1 in later)
