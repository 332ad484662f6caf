"""Arguments that share memory: the same tensor twice, base and view, overlapping windows; written to or not."""

from __future__ import annotations

import pytest
from torch import Tensor

from tests.aot_behaviours.observation import (
    Inputs,
    Make,
    arguments,
    check,
    leaves,
    results,
    succeeds,
    values,
    windows,
)

pytestmark = pytest.mark.beside_eager

BOTH = pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])


def flat(base: Tensor) -> Tensor:
    return base.view(-1)


def row(base: Tensor) -> Tensor:
    return base[0]


def itself(base: Tensor) -> Tensor:
    return base


def twice(grad: bool, *shape: int) -> Make:
    """One result as both arguments."""
    return windows(shape, itself, itself, grad=grad)


# --- views of one base ---


@BOTH
def test_equal_rows_of_which_one_is_written(grad: bool) -> None:
    """Two views of the same row; a write to the first is read through the second."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x + y

    assert succeeds(check(function, windows((4, 2), row, row, grad=grad)))


@BOTH
def test_row_and_base_of_which_the_row_is_written(grad: bool) -> None:
    """A row and the base itself."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x + y

    assert succeeds(check(function, windows((2, 2), row, itself, grad=grad)))


@BOTH
def test_view_of_the_alias_of_a_written_input(grad: bool) -> None:
    """The output is a view of the argument that was not written to itself."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y.view(y.shape)

    assert succeeds(check(function, windows((2, 2), flat, flat, grad=grad)))


@BOTH
def test_view_of_a_written_input_with_an_alias(grad: bool) -> None:
    """The first and the last of three arguments alias, the last is written to, a view of it comes back."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        z.mul_(2)
        return y.add(1), z.view(-1)

    def make() -> Inputs:
        one, other = values(2, 2, grad=grad), values(2, 2, grad=grad)
        x, y = one + 1, other + 1
        return Inputs((one, other), (x.view(-1), y, x.view(-1)))

    assert succeeds(check(function, make))


@BOTH
def test_two_aliases_neither_written(grad: bool) -> None:
    """Views of aliased arguments: each output is a view of its own argument, by shape and memory."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.view(x.shape), y.view(y.shape)

    assert succeeds(check(function, windows((2, 2), flat, row, grad=grad)))


@BOTH
def test_metadata_of_an_alias(grad: bool) -> None:
    """One of two aliases is transposed in place: no values change, so the other sees nothing."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.t_()
        return x + y

    assert succeeds(check(function, windows((2, 2), flat, flat, grad=grad)))
    assert succeeds(check(function, windows((2, 2), itself, lambda base: base.view(2, 2), grad=grad)))


@BOTH
def test_values_of_one_alias_and_metadata_of_the_other(grad: bool) -> None:
    """One alias is written to, the other transposed in place, then they are multiplied."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        y.t_()
        return x.mul(y)

    assert succeeds(check(function, windows((2, 2), row, row, grad=grad)))
    assert succeeds(check(function, windows((2, 2, 2), row, row, grad=grad)))


@BOTH
def test_aliases_without_grad_beside_an_argument_with_it(grad: bool) -> None:
    """The aliases require no grad, so autograd knows no base of theirs; a third argument may require it."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return y + 1, z + 1

    def make() -> Inputs:
        base, other = values(2, 2) + 1, values(2, 2, grad=grad)
        return Inputs((base, other), (base.view(-1), base.view(-1), other))

    assert succeeds(check(function, make))


@BOTH
def test_two_pairs_of_aliases(grad: bool) -> None:
    """First and third, second and fourth argument alias; the second pair is written to, in values and metadata."""

    def function(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y.add_(1)
        w.unsqueeze_(0)
        return x + z + w, y.view(-1)

    def make() -> Inputs:
        one, other = values(2, 2, grad=grad), values(2, 2, grad=grad)
        x, y = one + 1, other + 1
        return Inputs((one, other), (x.view(-1), y.view(-1), x.view(-1), y.view(-1)))

    assert succeeds(check(function, make))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_detached_rows_of_one_memory(device: str) -> None:
    """Rows that were detached have no base that autograd knows, yet one memory."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x + y

    def make(first: int, second: int) -> Make:
        def rows() -> Inputs:
            base = values(4, 4).to(device)
            return Inputs((base,), (base[first].detach(), base[second].detach()))

        return rows

    assert succeeds(check(function, make(0, 1), make(1, 1)))


@BOTH
def test_everything_aliases(grad: bool) -> None:
    """Aliased arguments of which one is written, a transposed argument, and outputs that view an input and a result."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z.mul_(2)
        y.t_()
        result = (x + z).view(-1)
        return result, y.t(), result.unsqueeze(0)

    def make() -> Inputs:
        one, other = values(2, 2, grad=grad), values(2, 2, grad=grad)
        x, y = one + 1, other + 1
        return Inputs((one, other), (x.view(-1), y, x.view(-1)))

    assert succeeds(check(function, make))


# --- windows that share a storage, and overlap or not ---

APART = {
    "halves": ((4, 4), lambda x: x[0:2], lambda x: x[2:4]),
    "one after the other": (
        (256,),
        lambda x: x.as_strided((4, 4), (8, 1), storage_offset=0),
        lambda x: x.as_strided((4, 4), (8, 1), storage_offset=28),
    ),
    "interleaved columns": ((4, 4), lambda x: x[:, 0:2], lambda x: x[:, 2:4]),
    "interleaved, offset 22": (
        (256,),
        lambda x: x.as_strided((4, 4), (9, 1), storage_offset=0),
        lambda x: x.as_strided((4, 4), (9, 1), storage_offset=22),
    ),
    "interleaved, offset 23": (
        (256,),
        lambda x: x.as_strided((4, 4), (9, 1), storage_offset=0),
        lambda x: x.as_strided((4, 4), (9, 1), storage_offset=23),
    ),
    "touching": (
        (256,),
        lambda x: x.as_strided((2, 4, 3), (110, 24, 4), storage_offset=5),
        lambda x: x[196:220],
    ),
}
OVERLAPPING = {
    "offset 24": (
        (256,),
        lambda x: x.as_strided((4, 4), (9, 1), storage_offset=0),
        lambda x: x.as_strided((4, 4), (9, 1), storage_offset=24),
    ),
    "offset 25": (
        (256,),
        lambda x: x.as_strided((4, 4), (9, 1), storage_offset=0),
        lambda x: x.as_strided((4, 4), (9, 1), storage_offset=25),
    ),
    "one element": (
        (256,),
        lambda x: x.as_strided((2, 4, 3), (110, 24, 4), storage_offset=5),
        lambda x: x[195:219],
    ),
    "shifted slices": ((10,), lambda x: x[:-2], lambda x: x[2:]),
}


@BOTH
@pytest.mark.parametrize("where", [*APART, *OVERLAPPING])
def test_windows_of_one_storage_both_written(where: str, grad: bool) -> None:
    """Both windows are written to; where they overlap each write is seen through the other."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(3)
        y.mul_(2)
        return x.clone().view(-1) + y.clone().view(-1)

    shape, one, other = (APART | OVERLAPPING)[where]
    assert succeeds(check(function, windows(shape, one, other, grad=grad)))


@BOTH
def test_guard_tells_windows_that_overlap_from_those_that_do_not(grad: bool) -> None:
    """The same sizes and strides, apart and overlapping and as tensors of their own: no entry is used for another."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(3)
        y.mul_(2)
        return x + y

    def window(offset: int) -> Make:
        return windows((64,), lambda x: x[0:8], lambda x: x[offset : offset + 8], grad=grad)

    makes = [window(8), window(4), window(0), results((8,), (8,), grad=grad), window(6)]
    assert succeeds(check(function, *makes))
    assert succeeds(check(function, *makes[::-1]))


@BOTH
def test_both_windows_come_back(grad: bool) -> None:
    """A tensor and its inner part are both added to and both returned, with the same number twice."""

    def function(x: Tensor, y: Tensor, one: int, other: int) -> tuple[Tensor, Tensor]:
        return x.add_(one), y.add_(other)

    def make() -> Inputs:
        leaf = values(10, grad=grad)
        base = leaf + 1
        return Inputs((leaf,), (base, base[1:-1], 2, 2))

    assert succeeds(check(function, make))


@pytest.mark.parametrize("take", [lambda base: base.unsqueeze(0), lambda base: base[1:]], ids=["unsqueezed", "tail"])
def test_equal_windows_both_written_and_one_returned(take: object) -> None:
    """Both arguments are the same window, made twice; both are added to, one comes back."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        y.add_(1)
        return x

    assert succeeds(check(function, windows((10,), take, take)))  # type: ignore[arg-type]
    assert succeeds(check(function, windows((10,), take, take, grad=False)))  # type: ignore[arg-type]


# --- one tensor twice ---


@BOTH
def test_same_tensor_twice(grad: bool) -> None:
    """One leaf as both arguments: one gradient, the sum of both."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 + y

    x = values(3, 3, grad=grad)
    assert succeeds(check(function, arguments(x, x)))


@BOTH
def test_same_tensor_twice_with_two_metadata_mutations(grad: bool) -> None:
    """Transposed through one name, unsqueezed through the other: both see both."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.t_()
        y.unsqueeze_(0)
        return x + y

    assert succeeds(check(function, twice(grad, 3, 3)))


@BOTH
def test_same_tensor_twice_and_the_first_transposed(grad: bool) -> None:
    """Only the first of two names changes the metadata; then the same call with two tensors."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor]:
        x.t_()
        return (x + y,)

    assert succeeds(check(function, twice(grad, 3, 3), results((3, 3), (3, 3), grad=grad)))
    assert succeeds(check(function, results((3, 3), (3, 3), grad=grad), twice(grad, 3, 3)))


@BOTH
def test_same_tensor_first_and_last_written_and_returned(grad: bool) -> None:
    """An element is written to through the first name, the last name comes back: it is the argument itself."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x[0].add_(1)
        return z

    def make() -> Inputs:
        one, other = values(2, grad=grad), values(2, grad=grad)
        x = one + 1
        return Inputs((one, other), (x, other + 1, x))

    assert succeeds(check(function, make))


@BOTH
def test_guard_tells_one_tensor_twice_from_two(grad: bool) -> None:
    """Two tensors, then one twice, and the other way round: each right, though both arguments are unsqueezed."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor]:
        x.unsqueeze_(0)
        y.unsqueeze_(0)
        return (x + y,)

    makes = [results((3, 3), (3, 3), grad=grad), twice(grad, 3, 3)]
    assert succeeds(check(function, *makes))
    assert succeeds(check(function, *makes[::-1]))


@BOTH
def test_pure_function_of_aliases_and_of_strangers(grad: bool) -> None:
    """A function that writes to nothing, called with two tensors, one twice, and base and transposed view."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x + y

    views = windows((3, 3), itself, lambda base: base.t(), grad=grad)
    assert succeeds(check(function, leaves((3, 3), (3, 3), grad=grad), twice(grad, 3, 3), views))
