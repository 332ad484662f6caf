"""Checks of grad rules of operators from outside of PyTorch, whose derivatives are registered, or by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from switchgear import testing
from tests.in_turn import in_turn


def rule_of(target: Any, pullback: Callable[[Tensor, Tensor], Tensor | None]) -> sg.Table:
    table = sg.Table("mine")
    table.grad_rule(target)(lambda x: (target(x), lambda grad: pullback(x, grad)))
    return table


def straight_through() -> Any:
    """An operator that rounds, and lets gradients through, as who registered it says."""

    @torch.library.custom_op("checks::rounded", mutates_args=())
    def rounded(x: Tensor) -> Tensor:
        return torch.round(x)

    rounded.register_fake(torch.empty_like)
    rounded.register_autograd(lambda context, grad: grad)
    return torch.ops.checks.rounded.default


def without_derivative() -> Any:
    """An operator whose derivative nobody registered."""

    @torch.library.custom_op("checks::cubed", mutates_args=())
    def cubed(x: Tensor) -> Tensor:
        return x**3

    cubed.register_fake(torch.empty_like)
    return torch.ops.checks.cubed.default


@pytest.fixture(scope="module")
def operators() -> dict[str, Any]:
    """Operators that are none of PyTorch's."""
    return {"rounded": straight_through(), "cubed": without_derivative()}


@in_turn(
    name__pullback__message=[
        ("rounded", lambda x, grad: grad.clone(), ""),  # its registered derivative, not that of a step
        ("rounded", lambda x, grad: grad * 0, "gradient of argument 0 differs"),
        ("cubed", lambda x, grad: grad * 3 * x * x, ""),
        ("cubed", lambda x, grad: grad * 3 * x, "GradcheckError"),
    ],
)
def test_rules_of_operators_from_outside(
    operators: dict[str, Any], name: str, pullback: Callable[[Tensor, Tensor], Tensor], message: str
) -> None:
    operator = operators[name]
    samples = [testing.Sample(operator, (torch.linspace(0.6, 2.3, 5),))]
    table = rule_of(operator, pullback)
    if not message:
        testing.check_rule(table, operator, samples, orders=1)
        return
    with pytest.raises(testing.Failures, match=message):
        testing.check_rule(table, operator, samples, orders=1)
