"""Two packages with operators of one name: each keeps its own kernel and its own gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg

FACTORS = {"made_up_a": 2.0, "made_up_b": 3.0}


@pytest.fixture
def operators() -> Iterator[dict[str, Callable[[Tensor], Tensor]]]:
    """`made_up_a::scale` doubles, `made_up_b::scale` triples."""
    with (
        torch.library._scoped_library("made_up_a", "DEF") as a,
        torch.library._scoped_library("made_up_b", "DEF") as b,
    ):
        for library in (a, b):
            library.define("scale(Tensor x) -> Tensor")
            factor = FACTORS[library.ns]
            library.impl("scale", lambda x, factor=factor: x * factor, "CPU")
            torch.library.register_fake(f"{library.ns}::scale", torch.empty_like, lib=library)
        yield {name: getattr(torch.ops, name).scale for name in FACTORS}


def executor(name: str, operator: Any) -> sg.Executor:
    """Implements and differentiates its own operator, and nobody else's; the factor shows whose kernel ran."""
    table = sg.Table(name)
    factor = FACTORS[name]

    @table.implementation(operator)
    def kernel(x: Tensor) -> Tensor:
        return x * factor

    @table.grad_rule(operator)
    def rule(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return operator(x), lambda grad: grad * factor

    return sg.Executor(name, table=table)


@pytest.mark.parametrize("order", [["made_up_a", "made_up_b"], ["made_up_b", "made_up_a"]])
def test_operators_of_one_name_are_two(operators: dict[str, Any], order: list[str]) -> None:
    def function(x: Tensor) -> Tensor:
        y: Tensor = operators["made_up_a"](x) + 10 * operators["made_up_b"](x)
        return y.sum()

    own = [executor(name, operators[name]) for name in order]
    jitted = sg.jit(function, executors=[*own, "torch"])
    x = torch.ones(2, requires_grad=True)
    result = jitted(x)
    result.backward()
    assert result.item() == 2 * (2 + 30)
    assert x.grad is not None
    assert x.grad.tolist() == [32.0, 32.0]
    for kind in ("execution", "gradient"):
        owners = {choice.symbol: choice.owner for choice in sg.last_choices(jitted) if choice.kind == kind}
        assert owners["made_up_a.scale.default"] == "made_up_a"
        assert owners["made_up_b.scale.default"] == "made_up_b"
