"""Gradients to second order, by differences in float64 and beside eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from tests.core.training import Function, forward, owners
from tests.cublas.layers import ACTIVATIONS, MLP, cublas, linear, own


def doubles(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradient_penalty_is_eagers(activation: str) -> None:
    model = MLP(activation).double()
    jitted = cublas(model)
    (x,) = doubles((4, 8))
    found = []
    for called in (jitted, model):
        (first,) = torch.autograd.grad(called(x).sum(), x, create_graph=True)
        found.append(torch.autograd.grad((first.norm() - 1).square(), list(model.parameters())[:3]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_derivative_inside_a_jitted_function() -> None:
    function = linear("gelu_tanh")
    made = [value.detach() for value in doubles((4, 3), (5, 3), (5,))]

    def loss(*args: Tensor) -> Tensor:
        value: Tensor = function(*args).square().sum()
        return value

    jitted = cublas(lambda *args: sg.grad(lambda *inner: sg.grad(loss)(*inner).square().sum())(*args))
    (first,) = torch.autograd.grad(loss(made[0].requires_grad_(), *made[1:]), made[0], create_graph=True)
    (wanted,) = torch.autograd.grad(first.square().sum(), made[0])
    torch.testing.assert_close(jitted(*[value.detach() for value in made]), wanted, rtol=1e-12, atol=1e-12)


def rule(target: object) -> sg.Table:
    """One that doubles the gradient of its argument."""
    table = sg.Table("mine")

    def doubled(x: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Function]:
        return x * 1, lambda grad: grad * 2

    table.grad_rule(target)(doubled)
    return table


@pytest.mark.parametrize("target", [F.relu, torch.ops.aten.relu.default])
def test_rule_of_the_call_for_a_part_comes_first(target: object) -> None:
    made = doubles((4, 3), (5, 3), (5,))
    jitted = cublas(linear("relu"), grad_rules=[rule(target)])
    grads = torch.autograd.grad(jitted(*made).sum(), made)
    torch.testing.assert_close(grads[2], torch.full((5,), 8.0, dtype=torch.float64))
    assert own(forward(jitted)) == []
    assert "mine, which comes before it, has a grad rule for" in str(sg.explain(jitted).operators())


def test_rule_of_an_executor_that_comes_later_does_not() -> None:
    made = doubles((4, 3), (5, 3), (5,))
    later = sg.Executor("mine", table=rule(F.relu))
    jitted = sg.jit(linear("relu"), executors=["cublas", later, "torch"])
    found = torch.autograd.grad(jitted(*made).sum(), made)
    torch.testing.assert_close(found, torch.autograd.grad(linear("relu")(*made).sum(), made))
    assert owners(jitted, "gradient")["switchgear_cublas.linear_relu.default"] == "cublas"


def test_skip_rule_for_a_part_holds() -> None:
    class Constant(sg.Executor):
        def is_constant_for_vjp(self, bound_symbol: sg.BoundSymbol) -> bool | None:
            return True if bound_symbol.symbol.name == "torch.nn.functional.relu" else None

    made = doubles((4, 3), (5, 3), (5,))
    jitted = sg.jit(lambda x, w, b: linear("relu")(x, w, b) + b, executors=["cublas", Constant("mine"), "torch"])
    (found,) = torch.autograd.grad(jitted(*made).sum(), made[2:])
    torch.testing.assert_close(found, torch.full((5,), 4.0, dtype=torch.float64))
    assert own(forward(jitted)) == []
    assert "is a constant by a skip rule of mine" in str(sg.explain(jitted).operators())


@pytest.mark.parametrize("memory", ["eager", "balanced"])
def test_what_is_saved(memory: str) -> None:
    """What the GELU was taken of, once, and its result for the layer behind it; of a ReLU, its result alone."""
    for activation, count in (("gelu_tanh", 2), ("relu", 1)):
        jitted = cublas(MLP(activation), memory=memory)
        jitted(torch.randn(4, 8)).sum().backward()
        saved = [value for value in sg.last_saved(jitted) if not value.alive]
        assert [value.type for value in saved] == ["cpu f32[4, 16]"] * count
