"""Reuse of buffers: what is written in place, what is not, and that nobody can tell."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear_torch import reuse_buffers as reuse
from switchgear_torch.internals import has_kernel
from tests.core.training import backward, executor, forward, leaf, lines, operators
from tests.in_turn import in_turn
from tests.oracle import assert_trains_as_eager


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "SMALLEST", 0)


def written(trace: sg.Trace) -> list[str]:
    """The calls of a trace that write to an argument."""
    return [item.symbol.name for item in lines(trace) if sg.passes.written_arguments(item)]


def trained(function: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
    """What a forward writes to; outputs and gradients are eager's to the bit."""
    return written(forward(assert_trains_as_eager(function, *args, **options)))


@in_turn(
    function__calls=[
        (lambda x: ((x + 1) * 2).sum(), ["aten.mul_.Tensor"]),
        (lambda x: (1 - (x + 1)).sum(), []),
        (lambda x: (x.detach() - (x + 1)).sum(), ["aten.sub.out"]),
        (lambda x: (x + 1).view(9).mul(2).sum(), ["aten.mul_.Tensor"]),
        (lambda x: ((x + 1)[1:] * 2).sum(), []),  # a part of the buffer
        (lambda x: ((x + 1).t() * 2).sum(), ["aten.mul_.Tensor"]),
        (lambda x: (x.t() * 2).sum(), []),  # an input's memory
        (lambda x: ((x + 1).expand(2, 3, 3) * 2).sum(), []),
        (lambda x: (lambda y: (y * 2 + y).sum())(x + 1), ["aten.add_.Tensor"]),
        (lambda x: (lambda y: (y * 2, y + 3))(x + 1), []),  # both come out
        (lambda x: (lambda y: ((y * 2).sum(), y))(x + 1), []),
        (lambda x: (lambda y: ((y * 2).sum(), y[0]))(x + 1), []),
        (lambda x: (lambda y: (y + y.t()).sum())(x + 1), []),  # two views of what ends
        (lambda x: (lambda y: (y + y).sum())(x + 1), ["aten.add_.Tensor"]),
        (lambda x: ((x + 1).double() * 2).sum(), ["aten.mul_.Tensor"]),
        (lambda x: ((x.detach() + 1) > 0).sum() * x, []),  # of another dtype
        (lambda x: torch.exp(x + 1), []),  # comes out, and is saved
        (lambda x: (x.cumsum(0) * 2).sum(), []),  # of an operator that is not known to allocate
        (lambda x: (lambda y: (y.cumsum(0), (y * 2).sum()))(x + 1), []),  # what that may have returned a view of
        (lambda x: ((x @ x.t()) * 2).sum(), ["aten.mul_.Tensor"]),
    ],
)
def test_what_is_written_to(function: Callable[..., Any], calls: list[str]) -> None:
    assert trained(function, leaf(3, 3)) == calls


def test_the_trace_is_python_that_runs() -> None:
    jitted = assert_trains_as_eager(lambda x: ((x + 1) * 2).sum(), leaf(3))
    text = forward(jitted).python()
    assert "t1 = torch.Tensor.mul_(t0, 2)" in text
    assert re.search(r"# passes: .* reuse_buffers [\d.]+ ms", text, re.DOTALL)
    space: dict[str, Any] = {}
    exec(text, space)
    assert torch.equal(space["forward"](torch.ones(3))[0], torch.tensor(12.0))


def test_a_backward_writes_too() -> None:
    jitted = assert_trains_as_eager(lambda x: torch.tanh(x * 2).exp().sin().sum(), leaf(5))
    assert written(backward(jitted))
    assert {choice.owner for choice in sg.last_choices(jitted) if choice.kind == "execution"} == {"torch"}


def test_a_backward_runs_twice() -> None:
    """What it takes from the forward is not its own."""
    x = leaf(5)
    y = sg.jit(lambda x: torch.tanh(x * 2).exp().sin(), executors=["torch"])(x).sum()
    (one,) = torch.autograd.grad(y, x, retain_graph=True)
    (other,) = torch.autograd.grad(y, x)
    assert torch.equal(one, other)


def test_grad_outputs_are_the_callers() -> None:
    x, grad = leaf(5), torch.ones(5)
    torch.autograd.grad(sg.jit(lambda x: (-x).sin().neg(), executors=["torch"])(x), x, grad)
    assert torch.equal(grad, torch.ones(5))


def test_what_an_executor_makes_is_not_written_to() -> None:
    """Its kernel may give out a buffer of its own, or an argument."""
    held = torch.full((3,), 5.0)
    mine = executor("mine", {torch.sin: lambda x: held}, {torch.sin: lambda x: (torch.sin(x), lambda grad: grad)})
    jitted = sg.jit(lambda x: (torch.sin(x) * 2).sum(), executors=[mine, "torch"])
    jitted(leaf(3))
    assert torch.equal(held, torch.full((3,), 5.0))
    assert not written(forward(jitted))


def test_nor_what_an_executor_has_seen() -> None:
    seen: list[Tensor] = []

    def keeping(x: Tensor) -> Tensor:
        seen.append(x)
        return torch.sin(x)

    mine = executor("mine", {torch.sin: keeping}, {torch.sin: lambda x: (torch.sin(x), lambda grad: grad)})
    jitted = sg.jit(lambda x: (lambda y: (torch.sin(y) + y * 2).sum())(x + 1), executors=[mine, "torch"])
    jitted(torch.ones(3, requires_grad=True))
    assert torch.equal(seen[0], torch.full((3,), 2.0))


def test_nor_what_an_executor_runs() -> None:
    mine = executor("mine", {torch.ops.aten.mul.Tensor: lambda x, y: torch.mul(x, y)})
    jitted = sg.jit(lambda x: ((x + 1) * 2 + 3).sum(), executors=[mine, "torch"])
    jitted(leaf(3))
    assert "aten.mul.Tensor" in operators(forward(jitted))
    assert not written(forward(jitted))


def test_constants_are_not_written_to() -> None:
    jitted = assert_trains_as_eager(lambda x: (torch.arange(9.0).view(3, 3).cumsum(0) * x).sum(), leaf(3, 3))
    assert not written(forward(jitted))


def test_an_operator_that_may_return_its_argument() -> None:
    """`conj_physical` of real numbers is its argument."""

    def function(x: Tensor) -> Tensor:
        y = x + 1
        z: Tensor = torch.ops.aten.conj_physical.default(y)
        return (z * 2 + y).sum()

    assert_trains_as_eager(function, leaf(3))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.gelu(x @ x, approximate="tanh").softmax(-1).log().sum(),
        lambda x: F.cross_entropy(F.layer_norm(x * 3, (8,)) * 2 + 1, torch.arange(8)),
        lambda x: F.silu(x + 1) * F.sigmoid(x * 2) / (1 + x.abs()),
        lambda x: torch.where(x > 0, x * 2, (x - 1).exp()).pow(3).mean(),
        lambda x: F.batch_norm(x * 2, None, None, training=True).relu().square().sum(),
        lambda x: (x * 2).cumsum(0).clamp(min=0.1).sqrt().reciprocal().sum(),
        lambda x: torch.lerp(x * 2, x + 1, x.sigmoid()).sum(),
        lambda x: torch.addcmul(x * 2, x + 1, x.exp()).addcdiv(x, x.exp()).sum(),
    ],
)
def test_results_are_eagers(function: Callable[..., Any]) -> None:
    # once: a result written over an argument that a later line, or the backward, reads
    jitted = assert_trains_as_eager(function, leaf(8, 8))
    assert [*written(forward(jitted)), *written(backward(jitted))]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16])
def test_dtypes_whose_kernels_round_in_other_places_in_place(dtype: torch.dtype) -> None:
    # once: the last of 5 complex quotients has another last bit when it is written over the dividend
    def function(x: Tensor) -> Tensor:
        y = (x + 1) / (x - 2) * 3
        return (torch.view_as_real(y) if y.is_complex() else y).sum()

    assert not trained(function, leaf(5, dtype=dtype))


def test_small_results_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "SMALLEST", 1 << 16)
    assert not trained(lambda x: ((x + 1) * 2).sum(), leaf(128, 127))
    assert trained(lambda x: ((x + 1) * 2).sum(), leaf(128, 128))


def test_has_kernel() -> None:
    aten = torch.ops.aten
    assert has_kernel(aten.mul.out, "cpu")
    assert has_kernel(aten.mm.default, "cpu")
    assert not has_kernel(aten.mul.Scalar_out, "cpu")  # generated: computes, then copies
    assert not has_kernel(aten.square.out, "cpu")  # made of pow
