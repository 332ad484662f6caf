"""What goes in and what comes out: other arguments than tensors, structures of outputs, what requires grad."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.aot_behaviours.observation import (
    Inputs,
    arguments,
    check,
    leaves,
    results,
    succeeds,
    values,
)

pytestmark = pytest.mark.beside_eager

BOTH = pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])


@BOTH
def test_number_and_none_before_a_tensor(grad: bool) -> None:
    """An int and a None among the arguments, before the tensor; the None unused."""

    def function(number: int, nothing: None, x: Tensor) -> Tensor:
        return x * number

    assert succeeds(check(function, arguments(2, None, values(3, 3, grad=grad))))


@BOTH
def test_number_and_none_after_a_tensor(grad: bool) -> None:
    """The same behind the tensor, and a second number is no reuse of the first's entry."""

    def function(x: Tensor, nothing: None, number: int) -> Tensor:
        return x * number

    x = values(3, 3, grad=grad)
    assert succeeds(check(function, arguments(x, None, 3), arguments(x, None, 4)))


@BOTH
def test_one_output(grad: bool) -> None:
    """One tensor comes back as a tensor; one of two arguments may require grad."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    assert succeeds(check(function, leaves((3, 3), (3, 3), grad=(grad, False))))


@BOTH
def test_tuple_of_outputs(grad: bool) -> None:
    """Two outputs in a tuple."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x - y

    assert succeeds(check(function, leaves((3, 3), (3, 3), grad=(grad, False))))


@BOTH
def test_list_of_outputs(grad: bool) -> None:
    """Two outputs in a list: it stays a list."""

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        return [x + y, x - y]

    assert succeeds(check(function, leaves((3, 3), (3, 3), grad=(grad, False))))


def test_dict_that_holds_an_input_twice() -> None:
    """A dict of outputs: one input under two names."""

    def function(x: Tensor) -> dict[str, Tensor]:
        return {"one": x, "other": x}

    assert succeeds(check(function, leaves((3, 3)), results((3, 3))))


def test_dict_of_an_input_and_a_result() -> None:
    """A dict of an input itself and something computed from it."""

    def function(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"one": x, "other": y + x}

    assert succeeds(check(function, leaves((3,), (3,), grad=(True, False))))


def test_dict_argument_and_dict_output() -> None:
    """A dict as argument, iterated over, and a dict with the same keys as output."""

    def function(mapping: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: value * 2 for key, value in mapping.items()}

    assert succeeds(check(function, arguments({"one": values(3, grad=True), "other": values(2, grad=True)})))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
def test_outputs_of_which_some_require_grad(first: bool, second: bool) -> None:
    """Each output requires grad if one of its own inputs does, whatever the others do."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.cos(), y.cos(), x * y

    assert succeeds(check(function, leaves((5,), (5,), grad=(first, second))))


def test_output_that_requires_grad_of_an_input_that_does_not() -> None:
    """`requires_grad_` on a view of an input that does not require grad: the output is a leaf, or it is refused."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        view = x.view(-1)
        view.requires_grad_(True)
        return view

    check(function, leaves((3, 3), (3, 3), grad=(False, True)), refusable="a leaf that the function makes")


@pytest.mark.parametrize("make", [leaves, results])
def test_detached_view_beside_an_input(make: Any) -> None:
    """A detached input, and another input as it is."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.detach(), y

    assert succeeds(check(function, make((3, 3), (3, 3))))


@pytest.mark.parametrize("make", [leaves, results])
def test_detached_result_beside_an_input(make: Any) -> None:
    """A detached result, and another input as it is."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.add(1).detach(), y

    assert succeeds(check(function, make((3, 3), (3, 3))))


def test_number_among_the_outputs_has_no_gradient() -> None:
    """A size among the outputs is an int, and of the backward it is no part; sizes may change."""

    def function(x: Tensor) -> list[Any]:
        return [x + 1, x.shape[0]]

    assert succeeds(check(function, leaves((5,)), leaves((6,))))


def test_expanding_to_the_own_shape() -> None:
    """An output that is a view of its input although it looks the same; sizes may change."""

    def function(x: Tensor) -> Tensor:
        return x.expand(x.shape)

    assert succeeds(check(function, leaves((5,)), results((5,)), leaves((4, 2))))


def test_requires_grad_is_part_of_the_guard() -> None:
    """One function, called with a second argument that requires grad, does not, and does again."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (x + y,)

    makes = [leaves((3, 3), (3, 3), grad=(True, flag)) for flag in (True, False)]
    assert succeeds(check(function, *makes))
    assert succeeds(check(function, *makes[::-1]))


def test_result_that_is_made_under_no_grad() -> None:
    """Outputs made in a `no_grad` region require no grad; what is made of them outside may."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            frozen = x * y
            view = x.view(-1)
        return frozen, frozen * x, view

    assert succeeds(check(function, leaves((3, 3), (3, 3)), results((3, 3), (3, 3))))


def test_enabled_grad_inside_no_grad_around() -> None:
    """`enable_grad` inside a function that is called under `no_grad`: that output requires grad, the other does not."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            tracked = x + 1
        return tracked, x + 2

    assert succeeds(check(function, leaves((3, 3)), around=torch.no_grad))


@pytest.mark.parametrize(
    "shape_grad",
    [
        lambda grad: grad.t().contiguous().t(),
        lambda grad: torch.stack([grad, grad], -1)[..., 0],
        lambda grad: grad[:1].expand(grad.shape),
    ],
    ids=["transposed", "strided", "expanded"],
)
def test_grad_output_of_other_strides_than_the_output(shape_grad: Any) -> None:
    """Grad outputs come in any strides: the backward is right for them, also when it was made for others."""

    def function(x: Tensor) -> Tensor:
        return (x * 2).view(3, 4) * x.view(3, 4)

    jitted = sg.jit(function, executors=["torch"])
    for given in (lambda grad: grad, shape_grad, lambda grad: grad, shape_grad):
        one, other = values(4, 3, grad=True), values(4, 3, grad=True)
        (expected,) = torch.autograd.grad(function(one), one, given(values(3, 4)))
        (found,) = torch.autograd.grad(jitted(other), other, given(values(3, 4)))
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()


def test_one_argument_is_a_leaf_and_one_a_result() -> None:
    """Leaf and result side by side, both returned: `is_leaf` and `grad_fn` stay what they are."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, y, x * y

    def make() -> Inputs:
        x = values(3, grad=True)
        return Inputs((x,), (x, x * 2))

    assert succeeds(check(function, make))
