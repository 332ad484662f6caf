"""The minimum cut, of networks and of traces, beside all cuts that there are."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import switchgear as sg
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import RANDOM, BoundSymbol, Symbol
from switchgear_memory.min_cut import SINK, SOURCE, min_cut
from switchgear_memory.prices import Prices, to_save

Network = dict[tuple[int, int], int | None]
aten = torch.ops.aten


def subsets(values: Iterable[Any]) -> Iterable[set[Any]]:
    found = list(values)
    return (set(chosen) for size in range(len(found) + 1) for chosen in itertools.combinations(found, size))


def capacity(network: Network, later: Iterable[int]) -> float:
    """Of the cut between these nodes, on the sink's side, and the others."""
    side = set(later)
    cut = [found for (start, end), found in network.items() if start not in side and end in side]
    return sum(float("inf") if found is None else found for found in cut)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    nodes = range(draw(st.integers(2, 7)))
    pairs = [(start, end) for start in nodes for end in nodes if start not in (end, SINK) and end != SOURCE]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=16, unique=True))
    network: Network = {pair: draw(st.integers(0, 9) | st.none()) for pair in chosen}
    # no path may be unlimited
    return {pair: 9 if found is None and SOURCE in pair else found for pair, found in network.items()}


@settings(max_examples=300, deadline=None)
@given(networks())
def test_cut_is_the_least_of_all_cuts(network: Network) -> None:
    inner = {node for arc in network for node in arc} - {SOURCE, SINK}
    cuts = {frozenset(side | {SINK}): capacity(network, side | {SINK}) for side in subsets(inner)}
    least = min(cuts.values())
    found = min_cut(network)
    assert capacity(network, found) == least
    assert found & (inner | {SINK}) == frozenset.intersection(*(side for side, cost in cuts.items() if cost == least))


@pytest.mark.parametrize("factor", [1, 2**20, 2**31, 2**40])
def test_large_capacities_are_no_worse(factor: int) -> None:
    network: Network = {(0, 2): 3 * factor, (2, 3): 2 * factor, (3, 1): 4 * factor, (0, 3): factor, (2, 1): None}
    assert min_cut(network) == {SINK, 2, 3}
    network[2, 1] = factor
    assert capacity(network, min_cut(network)) == 4 * factor


#: What a made-up trace calls: of its own kind each of the ways in which a line may be run again, or not.
CALLS: dict[str, tuple[Any, frozenset[str]]] = {
    "quick": (aten.mul.Tensor, frozenset()),
    "slow": (aten.exp.default, frozenset()),
    "never": (aten.mm.default, frozenset()),
    "draw": (aten.rand_like.default, frozenset({RANDOM})),
    "coin": (aten.bernoulli.default, frozenset({RANDOM})),
    "view": (aten.t.default, frozenset()),
    "two results": (aten.native_layer_norm.default, frozenset()),
}


@st.composite
def traces(draw: st.DrawFn) -> tuple[list[BoundSymbol], list[TensorProxy], Prices]:
    """Lines of nothing that could run, but for metadata; what is read of them; and prices."""

    def value(name: str) -> TensorProxy:
        dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bool]))
        size = draw(st.integers(1, 40))
        return TensorProxy(name, (size,), (1,), dtype, torch.device("cpu"))

    values = [value("in0"), value("in1")]
    body = []
    for number in range(draw(st.integers(1, 6))):
        fn, tags = CALLS[draw(st.sampled_from(sorted(CALLS)))]
        arguments = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        made = tuple(value(f"t{number}_{part}") for part in range(1 + (fn is aten.native_layer_norm.default)))
        body.append(BoundSymbol(Symbol(str(fn), fn), tuple(arguments), {}, made, tags=tags))
        values += made
    read = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4, unique=True))
    outputs = draw(st.sets(st.sampled_from(values), max_size=2))
    overwritten = draw(st.sampled_from([frozenset[str](), frozenset({"in0"})]))
    return body, read, Prices(draw(st.booleans()), frozenset(proxy.name for proxy in outputs), overwritten)


def cost(body: Sequence[BoundSymbol], read: list[TensorProxy], prices: Prices, saved: set[str]) -> float:
    """Of saving these values and running again what makes the others that are read; infinite if that cannot be."""
    total, needed = 0.0, {proxy.name: proxy for proxy in read}
    maker = {proxy.name: item for item in body for proxy in item.outputs}
    for item in reversed(body):
        if any(proxy.name in needed and proxy.name not in saved for proxy in item.outputs):
            price = prices.recompute_price(item)
            total += float("inf") if isinstance(price, str) else price
            needed.update((proxy.name, proxy) for proxy in item.inputs)
    for name, proxy in needed.items():
        if name in saved:
            own = prices.saving(proxy, maker.get(name))
            total += float("inf") if own is None else own
        elif name not in maker and name in prices.overwritten:
            total = float("inf")
    return total


@settings(max_examples=300, deadline=None)
@given(traces())
def test_what_is_saved_is_the_cheapest_of_all_choices(
    made: tuple[list[BoundSymbol], list[TensorProxy], Prices],
) -> None:
    body, read, prices = made
    names = {proxy.name for item in body for proxy in item.outputs} | prices.overwritten
    least = min(cost(body, read, prices, saved) for saved in subsets(names))
    found = to_save(body, read, prices)
    assert cost(body, read, prices, set(found)) == least < float("inf")


def test_of_equal_costs_the_one_that_runs_least_again() -> None:
    x, y, z = (TensorProxy(name, (4,), (1,), torch.float32, torch.device("cpu")) for name in "xyz")
    drawn = BoundSymbol(Symbol("aten.rand_like", aten.rand_like.default), (x,), {}, y, tags=frozenset({RANDOM}))
    viewed = BoundSymbol(Symbol("aten.neg", aten.neg.default), (y,), {}, z)
    assert to_save([drawn, viewed], [z], Prices(False, frozenset(), frozenset())) == {"z"}


def test_views_that_cost_nothing_are_no_part_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would make paths of many lengths, and the flow is sought length by length."""
    networks: list[Network] = []

    def spied(network: Network) -> frozenset[int]:
        networks.append(network)
        return min_cut(network)

    monkeypatch.setattr(sys.modules["switchgear_memory.prices"], "min_cut", spied)

    def function(x: torch.Tensor) -> torch.Tensor:
        for views in range(6):
            x = x.sin()
            for _ in range(views):
                x = x.t()
        return x.sum()

    x = torch.randn(3, 3, requires_grad=True)
    sg.jit(function, executors=["torch"], memory="balanced", strict=True)(x).backward()
    assert x.grad is not None
    assert max(map(len, networks)) <= 5 * 6
