"""Common subexpressions: which equal calls are made once, and which are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from tests.core.against_eager import check, numbers
from tests.core.training import backward, forward, leaf, lines, operators
from tests.oracle import assert_trains_as_eager


def count(trace: sg.Trace, name: str) -> int:
    """How often a trace calls what has that in its name."""
    return sum(name in operator for operator in operators(trace))


def without_grad(function: Callable[..., Any], *args: Any) -> sg.Trace:
    """What runs for arguments that require no grad; results are eager's."""
    check(function, *args, gradient=False)
    jitted = sg.jit(function, executors=["torch"])
    jitted(*args)
    return forward(jitted)


@pytest.mark.parametrize(
    ("function", "name", "calls"),
    [
        (lambda x: torch.exp(x) * torch.exp(x), "exp", 1),
        (lambda x: torch.exp(x) + x.exp(), "exp", 1),  # one operator, many spellings
        (lambda x: (torch.exp(x) + 1) * (torch.exp(x) + 1), "add", 1),  # and what is made of it
        (lambda x: x.sum(0) * x.sum(0) + x.sum(1), "sum", 2),
        (lambda x: (x + 1) * (x + 1.0) * (x + True), "add", 3),
        (lambda x: torch.clamp(x, 0.0) / torch.clamp(x, -0.0), "clamp", 2),
        (lambda x: F.gelu(x) * F.gelu(x, approximate="tanh"), "gelu", 2),
        (lambda x: x.split(1)[0] * x.split(1)[1], "split", 1),
        (lambda x: torch.rand_like(x) * torch.rand_like(x), "rand_like", 2),
        (lambda x: F.dropout(x, 0.5) * F.dropout(x, 0.5), "dropout", 2),
        (lambda x: torch.bernoulli(x.abs().clamp(max=1)) + torch.bernoulli(x.abs().clamp(max=1)), "bernoulli", 2),
    ],
)
def test_equal_calls_are_made_once(function: Callable[..., Any], name: str, calls: int) -> None:
    # once: with keys by equality, 1 and 1.0 and True, or 0.0 and -0.0, are one argument
    assert count(without_grad(function, numbers(3, 3)), name) == calls


def test_a_value_that_comes_out_is_not_another() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.exp(x), torch.exp(x), torch.exp(x) * 2

    assert count(without_grad(function, numbers(3)), "exp") == 3
    one, other, product = sg.jit(function, executors=["torch"])(numbers(3))
    one.zero_()  # once: with the two merged this clears the other
    assert other.all()
    assert product.all()


def test_nor_is_what_shares_memory_with_what_comes_out() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.exp(x).view(-1)[1:], torch.exp(x).t()

    one, other = sg.jit(function, executors=["torch"])(numbers(3, 3))
    one.zero_()
    assert other.all()
    check(function, numbers(3, 3))


def test_nor_what_is_written_to_an_input() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.copy_(torch.exp(y))
        return torch.exp(y)

    check(function, numbers(3), numbers(3), gradient=False)


def test_never_across_a_write() -> None:
    def function(x: Tensor) -> Tensor:
        before = torch.exp(x)
        x.mul_(2)
        return before * torch.exp(x) * torch.exp(x)

    assert count(without_grad(function, numbers(3)), "exp") == 2


def test_equal_views_are_made_once_and_stay_two_where_they_come_out() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.exp(x)
        return y.t(), y.t(), y.t() @ y.t()

    assert count(without_grad(function, numbers(3, 3)), ".t") == 1
    one, other, _ = sg.jit(function, executors=["torch"])(numbers(3, 3))
    assert one is not other
    assert one.data_ptr() == other.data_ptr()


def test_grad_mode_keeps_calls_apart() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            constant = torch.exp(x)
        return torch.exp(x) * constant

    assert count(forward(assert_trains_as_eager(function, leaf(3))), "exp") == 2


def test_calls_whose_gradients_sum_are_kept() -> None:
    """`f'(g1) + f'(g2)` is not `f'(g1 + g2)` to the bit."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(x) * 3 + torch.tanh(x) * y

    jitted = assert_trains_as_eager(function, leaf(64), leaf(64))
    assert count(forward(jitted), "tanh") == 2


def test_in_training_calls_without_a_gradient_are_made_once() -> None:
    def function(x: Tensor, mask: Tensor) -> Tensor:
        return x * torch.where(mask > 0, 1.0, 2.0) * torch.where(mask > 0, 1.0, 2.0)

    jitted = assert_trains_as_eager(function, leaf(5), torch.randn(5))
    assert (count(forward(jitted), "where"), count(forward(jitted), "gt")) == (1, 1)


def test_equal_lines_of_a_backward_are_one_with_both_links() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x) + x.sin() * y

    jitted = assert_trains_as_eager(function, leaf(4), leaf(4))
    (cosine,) = [item for item in lines(backward(jitted)) if item.symbol.name == "aten.cos.default"]
    assert len({link.forward for link in cosine.links}) == 2
    text = re.sub(r"\n {8}# +", "  ", backward(jitted).python(link=True))
    assert re.search(r"forward: t1 = torch.sin  \S+, t0 = torch.sin  \S+  rule: derived", text)


def test_a_backward_does_not_save_what_it_can_compute() -> None:
    """The forward's `x * x` is not saved for the backward, which computes it from `x` as in eager."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x**3, x.detach() ** 2 + 1

    jitted = assert_trains_as_eager(function, leaf(5))
    assert len([proxy for proxy in forward(jitted).outputs if proxy is not None]) == 3


def masked(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Two outputs, whose backwards read equal values without a gradient."""
    return torch.tanh(x) * torch.sin(mask), torch.exp(x) * torch.sin(mask)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_backward_for_other_grad_outputs_reads_what_was_merged(missing: int) -> None:
    # once: it asks for the value that is gone, which nothing saved can give
    x, twin, mask = leaf(5), leaf(5), torch.randn(5)
    twin.data = x.data.clone()
    jitted = sg.jit(masked, executors=["torch"])
    jitted(x, mask)[missing].sum().backward()
    masked(twin, mask)[missing].sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, twin.grad)  # type: ignore[arg-type]
    assert count(forward(jitted), "sin") == 1


def test_second_gradients_are_eagers_to_the_bit() -> None:
    x, mask = leaf(50), torch.randn(50)

    def second(function: Callable[..., Any]) -> list[Tensor]:
        one, other = function(x, mask)
        (first,) = torch.autograd.grad((one * one.detach() + other).sum(), x, create_graph=True)
        return [first, *torch.autograd.grad((first * first).sum(), x)]

    for found, wanted in zip(second(sg.jit(masked, executors=["torch"])), second(masked), strict=True):
        assert torch.equal(found, wanted)


def test_regions_of_checkpoint_stay_apart() -> None:
    def block(x: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(x * torch.sin(mask))

    def function(x: Tensor, mask: Tensor) -> Any:
        x = checkpoint(block, x, mask, use_reentrant=False)
        return checkpoint(block, x, mask, use_reentrant=False)

    jitted = assert_trains_as_eager(function, leaf(5), torch.randn(5))
    assert count(forward(jitted), "sin") == 2
    assert count(backward(jitted), "sin") == 2


def test_what_the_function_calls_of_others_is_never_merged() -> None:
    """An operator from elsewhere may do more than its schema says."""
    calls = []

    with torch.library._scoped_library("switchgear_cse", "FRAGMENT") as library:
        library.define("noted(Tensor x) -> Tensor")

        def noted(x: Tensor) -> Tensor:
            calls.append(x)
            return x + 1

        library.impl("noted", noted, "CPU")
        library.impl("noted", lambda x: x + 1, "Meta")
        op = torch.ops.switchgear_cse.noted
        jitted = sg.jit(lambda x: op(x) * op(x), executors=["torch"])
        jitted(numbers(3))
    assert len(calls) == 2
