"""Second gradients around a jitted function: what the first backward did not read is there for the second."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear.errors import NotDifferentiable
from switchgear_runtime.last_call import last_entry

T = torch.float64
#: Far from singular, and without symmetry.
MATRIX = torch.sin(torch.arange(1, 17, dtype=T)).reshape(4, 4) + 3 * torch.eye(4, dtype=T)


def index_filled(x: Tensor) -> Tensor:
    """By a tensor that has a gradient; one place twice."""
    return x.sin().index_fill(1, torch.tensor([2, 0, 2]), x[0, 1].cos())


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "svdvals": torch.linalg.svdvals,
    "eigvalsh": lambda x: torch.linalg.eigvalsh(x + x.mT),
    "nuclear norm": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "det": torch.linalg.det,
    "slogdet": lambda x: torch.linalg.slogdet(x).logabsdet,
    "solve": lambda x: torch.linalg.solve(x, x[0].cos()),
    "solve with a view": lambda x: torch.linalg.solve(x.mT, x[0].cos()),
    "one of two results": lambda x: torch.var_mean(x.sin(), dim=0)[1],
    "trace": lambda x: torch.trace(x.sin()),
    "index_fill": index_filled,
    "complex write to a slice": lambda x: torch.view_as_real(torch.fft.rfft(x.sin())),
}


def gradients(function: Callable[[Tensor], Tensor], start: Tensor) -> Iterator[Tensor]:
    x = start.clone().requires_grad_()
    value = function(x).square().sum()
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    yield first.detach()
    (second,) = torch.autograd.grad(first.square().sum(), x)
    yield second


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_gradient_is_eagers(name: str) -> None:
    expected = list(gradients(FUNCTIONS[name], MATRIX))
    jitted = sg.jit(FUNCTIONS[name], executors=["torch"])
    for _ in range(2):  # the second time from the cache
        for found, eager in zip(gradients(jitted, MATRIX), expected, strict=True):
            # one node gives eager's terms of a gradient as their sum, so they are added in another order
            torch.testing.assert_close(found, eager, rtol=1e-12, atol=1e-12)


def saved_of(jitted: Any) -> list[tuple[int, ...]]:
    return [proxy.shape for proxy in jitted._switchgear.last.bridge.training.saved]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        # eager saves both factors and the values; the first backward reads the factors alone
        (torch.linalg.svdvals, [(4,), (4, 4), (4, 4)]),
        # the matrix and its decomposition
        (lambda x: torch.linalg.solve(x, torch.ones(4, dtype=T)), [(4,), (4,), (4, 4), (4, 4)]),
        # one gradient, and no other formula for the second: nothing more than the backward reads
        (lambda x: torch.nn.functional.layer_norm(x, (4,)), [(4, 1), (4, 1), (4, 4)]),
        (lambda x: torch.stack(x.unbind()[:2]), []),
    ],
)
def test_no_more_is_saved_than_in_eager(function: Any, shapes: list[tuple[int, ...]]) -> None:
    jitted = sg.jit(function, executors=["torch"])
    x = MATRIX.clone().requires_grad_()
    eager: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        eager.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(x)
    jitted(x).sum().backward()
    assert sorted(saved_of(jitted)) == shapes
    assert sum(map(math.prod, shapes)) <= sum(eager)


def layers(x: Tensor) -> Tensor:
    """Several values are saved through which a second gradient flows."""
    for _ in range(4):
        x = (x.sin() @ MATRIX).sigmoid()
    return x


def inner_values(jitted: Any) -> int:
    return len(last_entry(jitted).bridge.inner)  # type: ignore[union-attr]


def penalties(function: Callable[[Tensor], Tensor], *, times: int) -> list[Tensor]:
    """First, second and third gradients, the last by several backwards of one graph."""
    x = MATRIX.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    for _ in range(times):
        second.square().sum().backward(retain_graph=True)
    assert x.grad is not None
    return [first.detach(), second.detach(), x.grad]


@pytest.mark.parametrize("times", [1, 2])
def test_inner_values_of_a_chain(times: int) -> None:
    jitted = sg.jit(layers, executors=["torch"])
    for found, expected in zip(penalties(jitted, times=times), penalties(layers, times=times), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert inner_values(jitted) > 2


def test_one_graph_differentiated_twice() -> None:
    """Two backwards of one node are differentiated in one backward: their gradients of inner values add up."""

    def both(function: Callable[[Tensor], Tensor]) -> Tensor:
        x = MATRIX.clone().requires_grad_()
        y = function(x)
        (one,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (other,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (found,) = torch.autograd.grad((one * other.cos()).sum(), x)
        return found

    torch.testing.assert_close(both(sg.jit(layers, executors=["torch"])), both(layers), rtol=1e-12, atol=1e-12)


def test_a_backward_that_fails_leaves_nothing_for_the_next() -> None:
    x = MATRIX.clone().requires_grad_()
    jitted = sg.jit(layers, executors=["torch"])
    y = jitted(x)
    failing = True

    def fail(grad: Tensor) -> None:
        if failing:
            raise ArithmeticError

    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert y.grad_fn is not None
    y.grad_fn.register_prehook(lambda grads: fail(grads[0]))
    with pytest.raises(ArithmeticError):
        torch.autograd.grad(first.square().sum(), x, retain_graph=True)
    failing = False
    (found,) = torch.autograd.grad(first.square().sum(), x)
    expected = penalties(layers, times=1)[1]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_backwards_of_one_graph_in_threads() -> None:
    x = MATRIX.clone().requires_grad_()
    (first,) = torch.autograd.grad(sg.jit(layers, executors=["torch"])(x).sum(), x, create_graph=True)
    penalty = first.square().sum()
    expected = penalties(layers, times=1)[1]
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(torch.autograd.grad, penalty, x, retain_graph=True) for _ in range(32)]
    for done in runs:
        torch.testing.assert_close(done.result()[0], expected, rtol=1e-12, atol=1e-12)


def test_first_gradients_after_a_second_one() -> None:
    jitted = sg.jit(layers, executors=["torch"])
    for _ in range(2):
        penalties(jitted, times=1)
        x, other = MATRIX.clone().requires_grad_(), MATRIX.clone().requires_grad_()
        jitted(x).sum().backward()
        layers(other).sum().backward()
        torch.testing.assert_close(x.grad, other.grad, rtol=0, atol=0)


def test_pullback_runs_in_the_grad_mode_of_autograds_backward() -> None:
    """What a pullback differentiates itself can be differentiated again where that is asked for."""
    modes: list[bool] = []
    table = sg.Table("mine")

    @table.grad_rule(F.group_norm)
    def rule(x: Tensor, groups: int, **kwargs: Any) -> tuple[Tensor, Callable[..., Any]]:
        value, pull = torch.func.vjp(lambda x: F.group_norm(x, groups), x)[:2]

        def pullback(grad: Tensor) -> Any:
            modes.append(torch.is_grad_enabled())
            return pull(grad)  # PyTorch's formula for group_norm is another one in grad mode

        return value, pullback

    def function(x: Tensor) -> Tensor:
        return F.group_norm(x.reshape(1, 4, 4), 2).sin()

    jitted = sg.jit(function, executors=["torch"], grad_rules=table)
    for found, eager in zip(gradients(jitted, MATRIX), gradients(function, MATRIX), strict=True):
        torch.testing.assert_close(found, eager)
    assert modes[:2] == [False, True]  # of the first backward that is compiled, and of one that is differentiated


def written_unseen(x: Tensor) -> Tensor:
    y = x * x
    with torch.no_grad():
        y.clamp_min_(0.5)
    return y


def written_detached(x: Tensor) -> Tensor:
    y = x * x
    y.detach().add_(1)
    return y


@pytest.mark.parametrize("write", [written_unseen, written_detached])
def test_what_a_rule_wrote_to_unseen_by_autograd_is_no_constant(write: Callable[[Tensor], Tensor]) -> None:
    table = sg.Table("mine")

    @table.grad_rule(torch.sin)
    def rule(x: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        factor = write(x)
        return torch.sin(x), lambda grad: grad * factor

    x = MATRIX.clone().requires_grad_()
    jitted = sg.jit(lambda x: torch.sin(x).sum(), executors=["torch"], grad_rules=table)
    torch.testing.assert_close(torch.autograd.grad(jitted(x), x)[0], write(x.detach()))
    with pytest.raises(NotDifferentiable, match="let the rule save it"):
        torch.autograd.grad(torch.autograd.grad(jitted(x), x, create_graph=True)[0].sum(), x)


@pytest.mark.parametrize("form", ["pullback", "transform"])
def test_what_a_rule_makes_under_no_grad_is_constant(form: str) -> None:
    table = sg.Table("mine")

    def factor(x: Tensor) -> Tensor:
        with torch.no_grad():
            return x * x

    if form == "pullback":

        @table.grad_rule(torch.sin)
        def pair(x: Tensor) -> tuple[Tensor, Callable[..., Any]]:
            square = factor(x)
            return torch.sin(x), lambda grad: grad * square * x
    else:

        @table.grad_transform(torch.sin)
        def transform(x: Tensor) -> Tensor:
            result = torch.sin(x)
            sg.put_grad(x, sg.get_grad(result) * factor(x) * x)
            return result

    jitted = sg.jit(lambda x: torch.sin(x).sum(), executors=["torch"], grad_rules=table)
    x = MATRIX.clone().requires_grad_()
    (first,) = torch.autograd.grad(jitted(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, factor(MATRIX))
