"""Inputs whose shape, strides or `requires_grad` are changed, alone and together with their values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.aot_behaviours.observation import check, leaves, results, succeeds, windows

pytestmark = pytest.mark.beside_eager

BOTH = pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])


@BOTH
def test_transposed_in_place(grad: bool) -> None:
    """An input is transposed in place: the caller's tensor has other strides afterwards."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.transpose_(1, 0)
        return x + y

    assert succeeds(check(function, results((3, 3), (3, 3), grad=grad)))


@BOTH
def test_transposed_and_then_written(grad: bool) -> None:
    """First the strides, then the values of one input."""

    def function(x: Tensor) -> Tensor:
        x.transpose_(1, 0)
        x.mul_(2)
        return x + 1

    assert succeeds(check(function, results((3, 3), grad=grad), results((2, 3), grad=grad)))


@BOTH
def test_transposed_then_a_row_written_and_a_view_returned(grad: bool) -> None:
    """Strides, then a row of the values, and the output is a view of the changed input."""

    def function(x: Tensor) -> Tensor:
        x.t_()
        x[0].mul_(2)
        return x.view(x.shape)

    assert succeeds(check(function, results((3, 3), grad=grad)))


@BOTH
def test_views_of_a_written_a_transposed_and_an_untouched_input(grad: bool) -> None:
    """Three inputs, one written, one transposed in place, one left alone; a view of each comes back."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y.mul_(3)
        z.t_()
        return x.view(2, 2), y.view(2, 2), z.view(2, 2)

    assert succeeds(check(function, results((2, 2), (2, 2), (2, 2), grad=grad)))


@BOTH
def test_view_of_one_input_and_of_another_that_is_transposed(grad: bool) -> None:
    """The outputs come in the other order than the inputs, one of which is transposed in place."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.t_()
        return y.view(y.shape), x.view(x.shape)

    assert succeeds(check(function, results((3, 3), (3, 3), grad=grad)))


@BOTH
def test_diagonal_of_a_transposed_input_beside_a_written_one(grad: bool) -> None:
    """Results, a view of a transposed input and a sum with a written one, of four inputs."""

    def function(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y.transpose_(1, 0)
        z.add_(1)
        return w + 1, y.diagonal(), x + z

    assert succeeds(check(function, results((2, 2), (2, 2), (2, 2), (2, 2), grad=grad)))


@BOTH
def test_every_kind_of_alias_at_once(grad: bool) -> None:
    """A transposed input, two views of one result, and a view of the transposed input."""

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x.transpose_(1, 0)
        result = x.mul(2)
        return result.squeeze(), result.transpose(1, 0), x.unsqueeze(0)

    assert succeeds(check(function, results((1, 2, 4), grad=grad)))


def test_requires_grad_switched_on() -> None:
    """`requires_grad_()` on an input that did not require grad: it does afterwards, and its gradient is right."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.requires_grad_(True)
        return x.mul(3), y.mul(4)

    assert succeeds(check(function, leaves((3, 3), (3, 3), grad=(False, True))))
    assert succeeds(check(function, results((3, 3), (3, 3), grad=(False, True))))


@BOTH
def test_transposed_in_place_and_back(grad: bool) -> None:
    """Two changes that undo each other leave the strides as they were."""

    def function(x: Tensor) -> Tensor:
        x.t_()
        y = x * 2
        x.t_()
        return y

    assert succeeds(check(function, results((2, 3), grad=grad)))


@pytest.mark.parametrize("change", ["unsqueeze_", "squeeze_", "swapdims_"])
def test_other_metadata_mutations(change: str) -> None:
    """A dimension more, one less, two exchanged."""

    def function(x: Tensor) -> Tensor:
        getattr(x, change)(*{"unsqueeze_": (0,), "squeeze_": (1,), "swapdims_": (0, 2)}[change])
        return x * 2

    assert succeeds(check(function, results((3, 1, 2)), results((3, 1, 2), grad=False)))


def test_metadata_mutation_of_a_leaf() -> None:
    """Transposing a leaf that requires grad in place is eager's error; under `no_grad` it is none."""

    def function(x: Tensor) -> Tensor:
        x.t_()
        return x * 2

    def silent(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.t_()
        return x * 2

    assert not succeeds(check(function, leaves((2, 3))))
    check(silent, leaves((2, 3)), refusable="the gradient would come in other sizes than the call was given")


@BOTH
def test_view_that_is_transposed_in_place(grad: bool) -> None:
    """The argument is itself a view; its base stays as it was."""

    def function(x: Tensor) -> Tensor:
        x.t_()
        return x + 1

    assert succeeds(check(function, windows((3, 4), lambda base: base[:, 1:3], grad=grad)))


def test_resized_input() -> None:
    """`resize_` on an input that does not require grad, to as many elements as before."""

    def function(x: Tensor) -> Tensor:
        x.add_(3)
        x.resize_([20])
        return x * 2

    check(function, results((4, 5), grad=False), refusable="cannot call metadata-changing operators")
