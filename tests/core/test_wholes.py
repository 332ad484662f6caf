"""Wholes: a composite that an executor takes is its again where one that fuses gives the parts of it back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from tests.core.training import choice, forward, leaf, operators
from tests.oracle import assert_same, assert_trains_as_eager


class Fuses(sg.FusionExecutor):
    """Takes all leaves but those named, and leaves alone regions that hold one of `regions_without`."""

    def __init__(self, *, without: Iterable[str] = (), regions_without: Iterable[str] = ()) -> None:
        super().__init__("fuses", priority=10)
        self.without, self.regions_without = set(without), set(regions_without)

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        wanted = bound_symbol.is_leaf and bound_symbol.symbol.name not in self.without
        return None if wanted else sg.Declined("not wanted")

    def supports_region(self, region: sg.Trace) -> sg.Declined | None:
        if any(item.symbol.name in self.regions_without for item in region.bound_symbols):
            return sg.Declined("not this region")
        return super().supports_region(region)

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        return region.function()


def takes(function: Any, run: Callable[..., Any] | None = None) -> sg.Executor:
    """An executor with an implementation of one function of PyTorch."""
    table = sg.Table("takes")

    @table.implementation(function)
    def own(*args: Any, **kwargs: Any) -> Any:
        return (run or function)(*args, **kwargs)

    return sg.Executor("takes", table=table)


def owner_of(jitted: Any, name: str) -> list[str]:
    return [one.owner for one in sg.last_choices(jitted) if one.kind == "execution" and one.symbol == name]


SOFTPLUS = "torch.nn.functional.softplus"


@pytest.mark.parametrize(
    "function",
    [F.softplus, lambda x: F.softplus(x) @ x, lambda x: F.softplus(x @ x).sort(0)[0] @ x],
    ids=["alone", "before", "between"],
)
@pytest.mark.parametrize("grad", [False, True])
def test_a_composite_whose_parts_are_given_back(function: Any, grad: bool) -> None:
    executors: list[Any] = [Fuses(without=["aten.mm.default", "aten.sort.default"]), takes(F.softplus), "torch"]
    if grad:
        jitted = assert_trains_as_eager(function, leaf(3, 3), executors=executors)
    else:
        jitted = sg.jit(function, executors=executors)
        given = torch.rand(3, 3)
        assert_same(jitted(given), function(given))
    assert owner_of(jitted, SOFTPLUS) == ["takes"]
    assert ("fuses", "a region of 1 operators, fewer than 2") in choice(jitted, "execution", SOFTPLUS).declined


def test_without_fuel_composites_come_back() -> None:
    jitted = sg.jit(lambda x: F.softplus(x) * 2, executors=[Fuses(), takes(F.softplus), "torch"], fuel=0)
    jitted(torch.rand(3))
    assert owner_of(jitted, SOFTPLUS) == ["takes"]


@pytest.mark.parametrize("grad", [False, True])
def test_who_lost_a_composite_to_a_region_is_named(grad: bool) -> None:
    jitted = sg.jit(lambda x: (F.softplus(x) * 2).sum(), executors=[Fuses(), takes(F.softplus), "torch"])
    jitted(leaf(3) if grad else torch.rand(3))
    explanation = sg.explain(jitted)
    details = explanation.gradients() if grad else explanation.operators()
    assert "takes: fuses, which comes before it, takes aten.softplus.default inside" in str(details)


def test_what_is_inside_a_composite_and_read_elsewhere() -> None:
    """The backward reads the softmax that is inside: the composite is not run beside its parts."""

    def function(x: Tensor) -> Tensor:
        return F.cross_entropy(x, torch.tensor([0, 2, 1]))

    executors: list[Any] = [Fuses(regions_without=["aten._log_softmax.default"]), takes(F.cross_entropy), "torch"]
    jitted = assert_trains_as_eager(function, leaf(3, 3), executors=executors)
    assert operators(forward(jitted)).count("aten._log_softmax.default") == 1
    inference = sg.jit(function, executors=executors)
    given = torch.rand(3, 3)
    assert_same(inference(given), function(given))
    assert owner_of(inference, "torch.nn.functional.cross_entropy") == ["takes"]


def test_a_composite_of_which_a_part_is_in_a_region() -> None:
    def function(x: Tensor) -> Tensor:
        return F.cross_entropy((x * 2).sin(), torch.tensor([0, 2, 1]))

    executors: list[Any] = [Fuses(without=["aten.nll_loss_forward.default"]), takes(F.cross_entropy), "torch"]
    jitted = sg.jit(function, executors=executors)
    given = torch.rand(3, 3)
    assert_same(jitted(given), function(given))
    assert owner_of(jitted, "torch.nn.functional.cross_entropy") == ["decomposition"]


@pytest.mark.parametrize("kept", [(), ("aten.neg.default",)], ids=["outer", "inner"])
def test_a_composite_inside_of_another(kept: tuple[str, ...]) -> None:
    """The outer one comes back whole; where a part of it is in a region, the inner one does."""

    def function(x: Tensor) -> Tensor:
        return F.softmin(x * 2, 0)

    table = sg.Table("takes")
    table.implementation(F.softmin)(lambda x, dim, *args, **kwargs: F.softmin(x, dim))
    table.implementation(torch.softmax)(lambda x, *args, **kwargs: torch.softmax(x, *args, **kwargs))
    fuses = Fuses(without=["aten._softmax.default"]) if kept else Fuses(regions_without=["aten._softmax.default"])
    fuses.minimum = 1
    jitted = sg.jit(function, executors=[fuses, sg.Executor("takes", table=table), "torch"])
    given = torch.rand(3, 3)
    assert_same(jitted(given), function(given))
    assert owner_of(jitted, "torch.nn.functional.softmin") == (["decomposition"] if kept else ["takes"])
    assert owner_of(jitted, "torch.softmax") == (["takes"] if kept else [])
