"""Writes to inputs: computed in their memory where nobody can tell, and copied into it where somebody can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import switchgear as sg
from tests.core.training import forward
from tests.falling_back import assert_falls_back
from tests.in_turn import in_turn
from tests.oracle import assert_same


def matrix(requires_grad: bool = True) -> Tensor:
    return torch.arange(1.0, 10.0).reshape(3, 3).clone().requires_grad_(requires_grad)


def gradient() -> Tensor:
    return torch.linspace(-1, 1, 9).reshape(3, 3).clone()


def writes(jitted: Any) -> int:
    """To how many inputs the program of the entry last run writes itself."""
    return len(forward(jitted).writes)


@torch.no_grad()
def decay_and_step(w: Tensor, g: Tensor) -> None:
    w.mul_(0.9).addcmul_(g, g, value=0.1)


@torch.no_grad()
def interpolate(w: Tensor, g: Tensor) -> Tensor:
    w.lerp_(g, 0.25)
    return w.cos_().sum()


@torch.no_grad()
def both(w: Tensor, g: Tensor) -> None:
    w.mul_(g)
    g.add_(w)


@torch.no_grad()
def read_through_a_view(w: Tensor, g: Tensor) -> Tensor:
    w.mul_(g)
    return w.contiguous().reshape(9)[1:] * 2


@torch.no_grad()
def swap(w: Tensor, g: Tensor) -> None:
    old = w.clone()
    w.copy_(g + 1)
    g.copy_(old * 2)


@torch.no_grad()
def read_afterwards(w: Tensor, g: Tensor) -> Tensor:
    new = w * 2 + g
    before = w.exp()
    w.copy_(new)
    return before


@torch.no_grad()
def transposed_is_read(w: Tensor, g: Tensor) -> None:
    w.copy_(w.t() + g)


@torch.no_grad()
def value_is_returned(w: Tensor, g: Tensor) -> Tensor:
    new = w * g
    w.copy_(new)
    return new


@torch.no_grad()
def view_of_value_is_returned(w: Tensor, g: Tensor) -> Tensor:
    new = w * g
    w.copy_(new)
    return new[0]


@torch.no_grad()
def view_of_input_is_returned(w: Tensor, g: Tensor) -> Tensor:
    w.mul_(g)
    return w[0]


@torch.no_grad()
def two_of_one_value(w: Tensor, g: Tensor) -> None:
    new = w * g
    w.copy_(new)
    g.copy_(new)


FUNCTIONS: list[tuple[Callable[[Tensor, Tensor], Any], int]] = [
    (decay_and_step, 1),
    (interpolate, 1),
    (both, 2),
    (swap, 2),
    (transposed_is_read, 1),
    (value_is_returned, 1),
    (view_of_value_is_returned, 1),
    (two_of_one_value, 2),
    (read_afterwards, 1),
]


@pytest.mark.parametrize("transposed", [False, True])
@in_turn(function__count=FUNCTIONS)
def test_result_is_eagers(function: Callable[[Tensor, Tensor], Any], count: int, transposed: bool) -> None:
    jitted = sg.jit(function, executors=["torch"])
    (w, g), (expected, other) = ((matrix(), gradient()) for _ in range(2))
    if transposed:
        w, expected = (x.detach().t().clone().requires_grad_() for x in (w, expected))
    for _ in range(3):
        address, version = w.data_ptr(), w._version
        assert_same(jitted(w, g), function(expected, other))
        assert_same((w, g), (expected, other))
        assert w.data_ptr() == address
        assert w._version > version
    if not transposed:
        assert writes(jitted) == count


@pytest.mark.parametrize("function", [read_through_a_view, view_of_input_is_returned])
def test_view_of_what_was_written_to_falls_back(function: Callable[[Tensor, Tensor], Any]) -> None:
    assert_falls_back(function, lambda: (matrix(), gradient()), "under no_grad")


def test_what_is_returned_is_no_input() -> None:
    w, g = matrix(), gradient()
    found = sg.jit(value_is_returned, executors=["torch"])(w, g)
    found.zero_()
    assert w.detach().any()


def test_a_new_value_that_is_saved_is_not_in_the_inputs_memory() -> None:
    def function(w: Tensor, x: Tensor) -> Tensor:
        w.mul_(2)
        return (w * x).sum()

    jitted, x = sg.jit(function, executors=["torch"]), torch.ones(3, requires_grad=True)
    for _ in range(3):
        w = torch.ones(3)
        loss = jitted(w, x)
        w.data.fill_(7)
        assert_same(torch.autograd.grad(loss, x), (torch.full((3,), 2.0),))


def test_backward_that_read_the_input_before_raises() -> None:
    w, g = matrix(), gradient()
    jitted = sg.jit(decay_and_step, executors=["torch"])
    jitted(w, g)
    loss = (w * w).sum()
    jitted(w, g)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_input_is_as_it_was_where_an_exception_comes_first() -> None:
    @torch.no_grad()
    def function(w: Tensor, index: Tensor) -> None:
        w.addcmul_(w[index].sum(), w.new_ones(()), value=0.5)

    jitted = sg.jit(function, executors=["torch"])
    w = matrix()
    jitted(w, torch.tensor([0]))
    before, version = w.detach().clone(), w._version
    with pytest.raises(IndexError):
        jitted(w, torch.tensor([9]))
    assert_same(w.detach(), before)
    assert w._version == version


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tangents_go_into_the_input() -> None:
    jitted = sg.jit(decay_and_step, executors=["torch"])
    jitted(matrix(False), gradient())
    found = []
    for function in (jitted, decay_and_step):
        with forward_ad.dual_level():
            w = forward_ad.make_dual(matrix(False), torch.ones(3, 3))
            function(w, gradient())
            found.append(tuple(forward_ad.unpack_dual(w)))
    assert_same(*found)


def test_another_entry_finds_the_input_as_it_was() -> None:
    @torch.no_grad()
    def function(w: Tensor) -> None:
        w.add_(1.0)
        if w.sum() > 10:
            w.mul_(2.0)

    jitted = sg.jit(function, executors=["torch"], specialize_on_data=True)
    w, expected = torch.ones(3), torch.ones(3)
    for _ in range(6):
        jitted(w)
        function(expected)
        assert_same(w, expected)


def test_inputs_that_share_memory() -> None:
    found = []
    for function in (sg.jit(swap, executors=["torch"]), swap):
        memory = torch.arange(9.0).reshape(3, 3)
        function(memory, memory)
        halves = torch.arange(6.0)
        function(halves[:3], halves[3:])
        function(halves[:4], halves[2:])
        found.append((memory, halves))
    assert_same(*found)


def test_inference_tensors() -> None:
    jitted = sg.jit(decay_and_step, executors=["torch"])
    with torch.inference_mode():
        w, expected, g = matrix(False).clone(), matrix(False).clone(), gradient()
        jitted(w, g)
        decay_and_step(expected, g)
        assert torch.equal(w, expected)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        jitted(w, g)
