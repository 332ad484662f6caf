"""Autograd's node of a compiled call: backwards of several graphs in turn, of values overwritten since, and twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg


def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return a * b, a.exp()


def cubed(x: Tensor) -> Tensor:
    return (x * x * x).exp()


def call(called: Callable[..., Any]) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """A call in whose graph `b` may be overwritten."""
    a, b = torch.linspace(-1, 1, 3).requires_grad_(), torch.linspace(2, 3, 3)
    return a, b, called(a, b)


@pytest.mark.parametrize("called", [function, sg.jit(function, executors=["torch"], strict=True)], ids=["eager", "jit"])
def test_a_backward_that_reads_what_was_overwritten_raises_whatever_ran_before(called: Callable[..., Any]) -> None:
    def backward(graph: Any, *outputs: int) -> Any:
        total = torch.stack([graph[2][output] for output in outputs]).sum()
        (gradient,) = torch.autograd.grad(total, graph[0], retain_graph=True)
        return gradient

    for outputs in ((0,), (0, 1)):
        first, other = call(called), call(called)
        expected = backward(other, *outputs)
        first[1].zero_()
        assert torch.equal(backward(first, 1), first[0].exp())  # reads no `b`
        for _ in range(2):
            assert torch.equal(backward(other, *outputs), expected)
            with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
                backward(first, *outputs)
        assert torch.equal(backward(first, 1), first[0].exp())


@pytest.mark.parametrize("called", [function, sg.jit(function, executors=["torch"], strict=True)], ids=["eager", "jit"])
@pytest.mark.parametrize("is_retained", [False, True])
def test_a_graph_is_gone_once_its_backward_ran(called: Callable[..., Any], is_retained: bool) -> None:
    for _ in range(3):
        a, b, (product, exponential) = call(called)
        total = (product + exponential).sum()
        (gradient,) = torch.autograd.grad(total, a, retain_graph=is_retained)
        assert torch.equal(gradient, b + a.exp())
        if is_retained:
            assert torch.equal(torch.autograd.grad(total, a)[0], gradient)
        with pytest.raises(RuntimeError, match=r"backward through the graph a second time|already been freed"):
            torch.autograd.grad(total, a)


def test_backwards_of_every_pattern_of_grad_outputs_in_turn() -> None:
    jitted = sg.jit(function, executors=["torch"], strict=True)
    for weights in ((1.0, None), (None, 1.0), (2.0, 3.0), (1.0, None), (2.0, 3.0)):
        gradients = []
        for called in (function, jitted, jitted):
            a, _, outputs = call(called)
            pairs = [
                (one, torch.full_like(one, weight)) for one, weight in zip(outputs, weights, strict=True) if weight
            ]
            torch.autograd.backward([one for one, _ in pairs], [grad for _, grad in pairs])
            gradients.append(a.grad)
        assert all(torch.equal(gradients[0], gradient) for gradient in gradients[1:])  # type: ignore[arg-type]


def test_a_backward_that_is_differentiated_and_then_not() -> None:
    jitted = sg.jit(cubed, executors=["torch"], strict=True)
    results: list[list[Tensor]] = []
    for called in (cubed, jitted):
        found: list[Tensor] = []
        for create_graph in (False, True, False, True):
            x = torch.linspace(-1, 1, 3, dtype=torch.float64).requires_grad_()
            (first,) = torch.autograd.grad(called(x).sum(), x, create_graph=create_graph)
            found.append(first.detach())
            if create_graph:
                found += torch.autograd.grad(first.sum(), x)
        results.append(found)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
