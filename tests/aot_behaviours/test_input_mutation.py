"""Inputs that are written to: the values, the history, what a detached or `no_grad` write leaves alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.aot_behaviours.observation import Inputs, check, leaves, results, succeeds, values, windows

pytestmark = pytest.mark.beside_eager

BOTH = pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])


@BOTH
def test_one_write(grad: bool) -> None:
    """An input is scaled and used; its own gradient flows through the write."""

    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x * 3

    assert succeeds(check(function, results((3, 3), grad=grad)))


def test_write_to_a_leaf_that_requires_grad_is_eagers_error() -> None:
    """In-place on a leaf that requires grad fails as in eager."""

    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x * 3

    assert not succeeds(check(function, leaves((3, 3))))


@BOTH
def test_written_input_is_the_output(grad: bool) -> None:
    """The input that was written to comes back: it is the very same tensor."""

    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x

    assert succeeds(check(function, results((3, 3), grad=grad)))


@BOTH
def test_two_of_three_inputs_are_written(grad: bool) -> None:
    """The first and the last of three inputs are written to, the one between is not."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x.mul_(2)
        z.mul_(2)
        return x + y + z

    assert succeeds(check(function, results((3, 3), (3, 3), (3, 3), grad=grad)))


def test_out_argument_is_an_input_and_the_output() -> None:
    """`out=` writes to an input, and what comes back is that input."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x, out=y)

    assert succeeds(check(function, results((3, 3), (3, 3), grad=False)))


@pytest.mark.parametrize("make", [leaves, results])
def test_write_to_a_detached_input(make: object) -> None:
    """Autograd does not see a write through `detach()`, to a leaf or a result: values change, the history does not."""

    def function(x: Tensor) -> Tensor:
        x.detach().mul_(2)
        return x + 3

    assert succeeds(check(function, make((4,))))  # type: ignore[operator]


def test_write_under_no_grad_to_a_view_made_with_grad() -> None:
    """A tracked view of an input is written to under `no_grad`."""

    def function(x: Tensor) -> Tensor:
        view = x.view(-1)
        with torch.no_grad():
            view.mul_(2)
        return x + 1

    assert succeeds(check(function, leaves((4,)), results((4,)), results((2, 2))))


def test_write_under_no_grad() -> None:
    """An input that requires grad is written to under `no_grad`; a leaf may be, too."""

    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.mul_(2)
        return x + 3

    assert succeeds(check(function, results((4,)), leaves((4,))))


def test_write_and_output_under_no_grad() -> None:
    """All under `no_grad`: the output requires no grad, the input still does."""

    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.mul_(2)
            return x + 3

    assert succeeds(check(function, results((4,)), leaves((4,))))


def test_detached_tracked_and_no_grad_writes_in_a_row() -> None:
    """Of three writes to one input only the one that autograd sees is part of the gradient."""

    def function(x: Tensor) -> Tensor:
        x.detach().mul_(2)
        x.mul_(3)
        with torch.no_grad():
            x.mul_(4)
        return x + 5

    assert succeeds(check(function, results((4,))))


@BOTH
def test_batch_norm_writes_its_statistics(grad: bool) -> None:
    """The operator writes running statistics that are arguments, and saves for its backward what it has written."""

    def function(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
        return torch._native_batch_norm_legit(x, weight, bias, mean, var, True, 0.5, 1e-5)

    shapes = ((2, 5, 5, 5), (5,), (5,), (5,), (5,))
    make = results(*shapes, grad=(grad, grad, grad, False, False))
    assert succeeds(check(function, make, unversioned="the operator writes without a new version"))


@BOTH
def test_write_to_a_noncontiguous_input(grad: bool) -> None:
    """The input is a column: the write reaches the base, and the base's gradient comes through it."""

    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    assert succeeds(check(function, windows((2, 2), lambda base: base[:, 0], grad=grad)))


@BOTH
def test_write_to_a_noncontiguous_input_and_no_output(grad: bool) -> None:
    """Every other element is written to, and nothing is returned at all: an empty tuple."""

    def function(x: Tensor) -> tuple[()]:
        x.add_(1)
        return ()

    def make() -> Inputs:
        leaf = values(4, grad=grad)
        base = leaf + 0
        view = base[::2]
        # The base goes with the leaves, so that what the call does to it is seen.
        return Inputs((leaf, base), (view,))

    assert succeeds(check(function, make))


def test_write_changes_the_history_of_aliases_outside() -> None:
    """A view that was made before the call has a new history after it, though it is no argument; the output is cut."""

    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return (x + 1).detach()

    def make() -> Inputs:
        leaf = values(3, 3, grad=True)
        x = leaf.clone()
        return Inputs((leaf, x.view(3, 3)), (x,))

    assert succeeds(check(function, make))


def test_write_makes_an_input_require_grad() -> None:
    """An input without grad gets one: something that requires grad is added to it in place, and it is returned."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(y)

    assert succeeds(check(function, leaves((4, 5), (4, 5), grad=(False, True))))


def test_write_to_a_row_whose_base_is_not_needed() -> None:
    """A row of the input is filled; the gradient needs the sizes of the input only, not its overwritten values."""

    def function(x: Tensor) -> Tensor:
        row = x[0]
        return row.masked_fill_(torch.ones_like(row, dtype=torch.bool), 0)

    assert succeeds(check(function, results((2, 2)), results((3, 4))))


@BOTH
def test_write_to_a_view_of_a_clone(grad: bool) -> None:
    """In-place on a squeezed clone leaves the input alone; sizes may change."""

    def function(x: Tensor) -> Tensor:
        copied = x.clone().squeeze(-1)
        copied.add_(1.0)
        return x + copied

    assert succeeds(check(function, leaves((3, 1), grad=grad), leaves((4, 1), grad=grad)))


def test_write_to_a_zero_dimensional_input() -> None:
    """A scalar tensor in double precision is written to."""

    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    assert succeeds(check(function, results(()), results((), grad=False)))
