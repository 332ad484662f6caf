"""Calls that change nothing: which are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from tests.core.against_eager import check, numbers
from tests.core.training import backward, forward, leaf, lines, operators
from tests.oracle import assert_trains_as_eager


def computed(function: Callable[..., Any], *args: Any) -> list[str]:
    """What runs for arguments that require no grad; results are eager's."""
    check(function, *args, gradient=False)
    jitted = sg.jit(function, executors=["torch"])
    jitted(*args)
    return [name.rpartition("torch.")[2] for name in operators(forward(jitted))]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: x.view(3, 3).exp(), ["exp"]),
        (lambda x: x.expand(3, 3).detach()[:].exp(), ["exp"]),
        (lambda x: x.exp().clone() + 1, ["exp", "add"]),
        (lambda x: x.exp().to(torch.float64, copy=True) + 1, ["exp", "add"]),
        (lambda x: x.t().clone() + 1, ["t", "clone", "add"]),  # a copy of what is the caller's
        (lambda x: x.exp().t().clone(memory_format=torch.contiguous_format) + 1, ["exp", "t", "clone", "add"]),
        (lambda x: x.exp().t().t() + 1, ["exp", "t", "t", "add"]),
        (lambda x: x[1:].exp(), ["Tensor.__getitem__", "exp"]),
        (lambda x: x.as_strided((3, 3), (3, 1)).exp(), ["as_strided", "exp"]),
        (lambda x: x.view(torch.int64).view(torch.float64).exp(), ["Tensor.view", "Tensor.view", "exp"]),
        (lambda x: x.exp().clone(), ["exp", "clone"]),
    ],
)
def test_what_changes_nothing_is_left_out(function: Callable[..., Any], left: list[str]) -> None:
    assert computed(function, numbers(3, 3)) == left


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(3, 3),
        lambda x: (x, x.view(3, 3), x.expand(3, 3)),
        lambda x: x.detach(),
        lambda x: (lambda y: (y, y.view(3, 3)))(x.exp()),
        lambda x: (lambda y: (y, y.clone(), y.clone()))(x.exp()),
        lambda x: (lambda y: (y.view(3, 3), y * 2))(x.exp()),
    ],
)
def test_what_comes_out_is_a_tensor_of_its_own(function: Callable[..., Any]) -> None:
    check(function, numbers(3, 3, grad=True))
    found = torch.utils._pytree.tree_leaves(sg.jit(function, executors=["torch"])(numbers(3, 3)))
    assert len({id(tensor) for tensor in found}) == len(found)


def test_a_copy_of_an_input_is_what_a_backward_reads() -> None:
    """The caller may write to the input before the backward."""

    def run(function: Callable[..., Any]) -> Tensor | None:
        x, w = torch.ones(3), torch.ones(3, requires_grad=True)
        loss = function(x, w)
        x.zero_()
        loss.backward()
        return w.grad

    def function(x: Tensor, w: Tensor) -> Tensor:
        return (w * x.clone()).sum()

    assert torch.equal(run(sg.jit(function, executors=["torch"])), run(function))  # type: ignore[arg-type]


def test_a_copy_of_what_comes_out_is_too() -> None:
    def run(function: Callable[..., Any]) -> Tensor | None:
        x, w = torch.ones(3), torch.ones(3, requires_grad=True)
        loss, made = function(x, w)
        made.zero_()
        loss.backward()
        return w.grad

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        made = x + 1
        return (w * made.clone()).sum(), made

    assert torch.equal(run(sg.jit(function, executors=["torch"])), run(function))  # type: ignore[arg-type]


def test_in_training() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return (x.view(4, 4).expand(4, 4) @ w.view(4, 4)).view(4, 4).tanh()

    jitted = assert_trains_as_eager(function, leaf(4, 4), leaf(4, 4))
    assert operators(forward(jitted)) == ["aten.mm.default", "aten.tanh.default"]
    # what runs is shorter still
    made = next(trace for trace in sg.last_backward_traces(jitted) if trace.provenance[-1].name == "claim")
    returned = set(made.outputs)
    views = [item for item in lines(made) if "view" in item.symbol.name or "expand" in item.symbol.name]
    assert views
    assert returned.issuperset(item.output for item in views)


@pytest.mark.parametrize("missing", [0, 1])
def test_backwards_for_other_grad_outputs(missing: int) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.exp(x).view(3, 3)
        return torch.tanh(y.view(3, 3)), y.detach().clone() * x

    x, twin = leaf(3, 3), leaf(3, 3)
    twin.data = x.data.clone()
    sg.jit(function, executors=["torch"])(x)[missing].sum().backward()
    function(twin)[missing].sum().backward()
    assert torch.equal(x.grad, twin.grad)  # type: ignore[arg-type]


def test_second_gradients() -> None:
    x = leaf(3, 3)

    def function(x: Tensor) -> Tensor:
        return torch.exp(x.view(3, 3)).expand(3, 3).view(3, 3).tanh()

    def second(function: Callable[[Tensor], Tensor]) -> Tensor:
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (found,) = torch.autograd.grad(first.pow(2).sum(), x)
        return found

    assert torch.equal(second(sg.jit(function, executors=["torch"])), second(function))


def test_a_frozen_model_computes_no_gradient_of_its_weights() -> None:
    """Only the gradients that are asked for are built: one product a layer, and none before the last that trains."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    for parameter in model[:4].parameters():
        parameter.requires_grad_(False)
    jitted = sg.jit(model, executors=["torch"])
    jitted(torch.randn(2, 4)).sum().backward()
    found = operators(backward(jitted))
    assert [name for name in found if "mm" in name] == ["aten.mm.default"]
    assert not [name for name in found if "tanh" in name]
    saved = [proxy for proxy in forward(jitted).outputs[1:] if proxy is not None]
    assert len(saved) == 1
    x = torch.randn(2, 4, requires_grad=True)
    model.requires_grad_(False)
    jitted(x).sum().backward()
    assert [name for name in operators(backward(jitted)) if "mm" in name] == ["aten.mm.default"] * 3
