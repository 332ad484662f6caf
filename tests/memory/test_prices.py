"""What saving a value costs, what running a line again costs, and why some lines are not run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import switchgear as sg
from switchgear_memory.prices import Prices, to_save
from tests.in_turn import in_turn

X = torch.arange(6.0).reshape(2, 3)


def lines(function: Callable[[Tensor], Any]) -> sg.Trace:
    """The operators of a function, as a pass sees them after differentiation."""
    jitted = sg.jit(function, executors=["torch"], strict=True)
    jitted(X.clone().requires_grad_()).sum().backward()
    return next(trace for trace in sg.last_traces(jitted) if trace.name == "joint")


def prices(fused: bool = False, **facts: Any) -> Prices:
    return Prices(fused, **{"returned": frozenset(), "overwritten": frozenset(), **facts})


def line(function: Callable[[Tensor], Any], name: str) -> sg.BoundSymbol:
    return next(item for item in lines(function).bound_symbols if name in item.symbol.name.split("."))


@in_turn(
    fused__function__name__price=[
        (False, lambda x: x.exp(), "exp", 48),  # one read, one written, of 24 bytes
        (False, lambda x: x.t() * 2, "t", 0),
        (False, lambda x: x @ x.t(), "mm", "aten.mm.default is not cheap"),
        (False, lambda x: torch.rand_like(x) * x, "rand_like", "it draws random numbers"),
        (True, lambda x: x.softmax(1), "_softmax", "aten._softmax.default would go over its arguments once more"),
    ],
)
def test_the_price_of_running_a_line_again(
    fused: bool, function: Callable[[Tensor], Any], name: str, price: object
) -> None:
    assert prices(fused).recompute_price(line(function, name)) == price


def strided(x: Tensor) -> Tensor:
    return x.as_strided((2,), (1,), 1).exp()


def test_a_strided_view_of_what_is_overwritten_is_not_made_again_of_the_copy() -> None:
    for function, name, reason in (
        (strided, "as_strided", "its place in memory is not that of the copy"),
        (lambda x: x[0].exp(), "select", 0),
    ):
        view = line(function, name)
        assert prices().recompute_price(view) == 0
        assert prices(overwritten=frozenset({view.output.name})).recompute_price(view) == reason


@in_turn(
    facts__price=[
        ({}, 24 * 16),
        ({"fused": True}, 24 * 16),
        ({"returned": frozenset({"own"})}, 24 * 16 // 64),
        ({"transient": frozenset({"own"})}, None),
    ],
)
def test_the_price_of_saving_a_value(facts: dict[str, Any], price: int | None) -> None:
    item = line(lambda x: x.exp(), "exp")
    named: dict[str, Any] = {
        key: frozenset({item.output.name}) if value == {"own"} else value for key, value in facts.items()
    }
    assert prices(**named).saving(item.output, item) == price
    assert prices().saving(item.output, None) == 24 * 16


def test_a_view_is_saved_where_a_copy_is_and_has_no_holes() -> None:
    for function, name, is_saved in (
        (lambda x: x[0].exp(), "select", True),
        (lambda x: x[:, 0].exp(), "select", False),  # a copy has no holes
        (lambda x: x.as_strided((2,), (3,), 1).exp(), "as_strided", True),
    ):
        view = line(function, name)
        assert prices().saving(view.output, view) is None
        copied = prices(overwritten=frozenset({view.output.name}))
        assert (copied.saving(view.output, view) is not None) is is_saved


def test_zeros_and_ones_are_narrow_unless_they_are_returned() -> None:
    coins = line(lambda x: torch.bernoulli(torch.full_like(x, 0.5)) * x, "bernoulli").subsymbols[0]
    assert prices().narrows(coins.output, coins)
    assert prices().held(coins.output, coins) == 6
    assert prices().saving(coins.output, coins) == 6 * 16 + 2 * (6 + 24)
    returned = prices(returned=frozenset({coins.output.name}))
    assert not returned.narrows(coins.output, coins)
    assert returned.held(coins.output, coins) == 24
    assert not prices().narrows(replace(coins.output, requires_grad=True), coins)
    exponential = line(lambda x: x.exp(), "exp")
    assert not prices().narrows(exponential.output, exponential)


def test_what_is_read_of_inputs_alone_needs_no_saving() -> None:
    joint = lines(lambda x: (x @ x.t()).exp())
    product = next(item for item in joint.bound_symbols if item.symbol.name == "aten.mm.default")
    exponential = next(item for item in joint.bound_symbols if item.symbol.name == "aten.exp.default")
    forward = joint.bound_symbols[: joint.bound_symbols.index(exponential) + 1]
    assert to_save(forward, [joint.inputs[0]], prices()) == frozenset()
    overwritten = prices(overwritten=frozenset({joint.inputs[0].name}))
    assert to_save(forward, [joint.inputs[0]], overwritten) == {joint.inputs[0].name}
    assert to_save(forward, [product.output], prices()) == {product.output.name}
