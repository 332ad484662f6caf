"""Outputs that are views of inputs and of intermediates, and what writing to them afterwards does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.aot_behaviours.observation import check, leaves, results, succeeds, values

pytestmark = pytest.mark.beside_eager

BOTH = pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])


# --- views of inputs ---


@BOTH
def test_view_of_an_input(grad: bool) -> None:
    """The output is the input in another shape, and a view of it."""

    def function(x: Tensor) -> Tensor:
        return x.view(-1)

    assert succeeds(check(function, results((2, 2), grad=grad), leaves((2, 2), grad=grad)))


@BOTH
def test_view_of_a_written_input(grad: bool) -> None:
    """The output is a view of the input after the write."""

    def function(x: Tensor) -> Tensor:
        x.add_(1)
        return x.view(-1)

    assert succeeds(check(function, results((2, 2), grad=grad)))


@BOTH
def test_views_of_a_written_and_an_unwritten_input(grad: bool) -> None:
    """Two of three inputs are written to; views of one of these and of the third come back."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        z.mul_(3)
        return y.view(2, 2), z.view(2, 2)

    assert succeeds(check(function, results((2, 2), (2, 2), (2, 2), grad=grad)))


@BOTH
def test_detached_input_and_the_input_written_after(grad: bool) -> None:
    """A detached alias, made before the write, shows the written values and has no history."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        detached = x.detach()
        x.mul_(2)
        return x, detached

    assert succeeds(check(function, results((3, 3), grad=grad)))


@BOTH
def test_parts_of_an_input(grad: bool) -> None:
    """Views that one call makes several of: eager forbids in-place on them, and so do we."""

    def function(x: Tensor) -> list[Tensor]:
        return list(x.unbind(0))

    assert succeeds(check(function, results((3, 3), grad=grad), leaves((3, 3), grad=grad)))


@BOTH
def test_parts_and_a_view_of_an_input(grad: bool) -> None:
    """Such parts, and an ordinary view of the same input: in-place on the latter is allowed."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return *x.unbind(0), x.view(x.shape)

    assert succeeds(check(function, results((3, 3), grad=grad)))


def test_parts_of_an_input_that_is_written_afterwards() -> None:
    """In-place on an input whose parts were returned: the parts' history is lost, and asking for it is an error."""

    def function(x: Tensor) -> list[Tensor]:
        return list(x.unbind(0))

    for called in (function, sg.jit(function, executors=["torch"])):
        x = values(3, 3, grad=True).clone()
        parts = called(x)
        with pytest.raises(RuntimeError, match="do not allow the output views"):
            parts[0].mul_(2)
        x.mul_(2)
        assert torch.equal(parts[0], x[0])
        with pytest.raises(RuntimeError, match="do not allow the output views"):
            _ = parts[0].grad_fn


def test_view_of_an_input_that_is_written_afterwards() -> None:
    """After the call the view and its input are written to in turn, by parts: one gradient for all of it."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return *x.unbind(0), x.view(x.shape)

    found = []
    for called in (function, sg.jit(function, executors=["torch"])):
        leaf = values(3, 3, grad=True)
        x = leaf.clone()
        view = called(x)[-1]
        view.mul_(2)
        x.view(-1).mul_(3)
        (leaf + view).sum().backward()
        found.append((view.detach(), leaf.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] is not None
    assert found[1][1] is not None
    assert torch.equal(found[0][1], found[1][1])


def test_view_of_a_view_of_an_input() -> None:
    """Views of views, one of them under `no_grad`: that one has no history, nor may it get one."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            silent = x[1]
        return x.t()[0], silent

    assert succeeds(check(function, results((3, 3)), results((3, 3), grad=False)))


# --- views of intermediates ---


@BOTH
def test_view_of_a_result(grad: bool) -> None:
    """One view of a result that does not come back itself."""

    def function(x: Tensor) -> Tensor:
        return torch.mul(x, 3).view(-1)

    assert succeeds(check(function, leaves((3, 3), grad=grad)))


@BOTH
def test_view_of_a_result_without_grad(grad: bool) -> None:
    """The result whose view comes back does not require grad, the other output may."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.mul(x, 3).view(-1), y.add(1)

    assert succeeds(check(function, leaves((3, 3), (3, 3), grad=(False, grad))))


@BOTH
def test_result_twice_and_a_view_of_it(grad: bool) -> None:
    """The result itself comes back twice, as one object, with a view between."""

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = torch.mul(x, 3)
        return result, result.view(-1), result

    assert succeeds(check(function, leaves((3, 3), grad=grad)))


@BOTH
def test_two_equal_views_of_a_result(grad: bool) -> None:
    """Two views of the same shape: two objects, one memory."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        result = torch.mul(x, 3)
        return result.view(-1), result.view(-1)

    assert succeeds(check(function, leaves((3, 3), grad=grad)))


@BOTH
@pytest.mark.parametrize("flipped", [False, True])
def test_result_and_a_view_of_it(grad: bool, flipped: bool) -> None:
    """A result and its view, in both orders."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        result = torch.mul(x, 3)
        return (result, result.view(-1)) if flipped else (result.view(-1), result)

    assert succeeds(check(function, leaves((3, 3), grad=grad)))


@BOTH
def test_result_and_a_detached_part_of_it(grad: bool) -> None:
    """A view, the result, and a detached row: all one memory, the row without history."""

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = torch.mul(x, 3)
        return result.view(-1), result, result[0].detach()

    assert succeeds(check(function, leaves((3, 3), grad=grad)))


def test_detached_view_and_the_view() -> None:
    """A view of a result and the same view detached: the same memory, and the first a view."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        view = (x + 1).transpose(0, 1)
        return view.detach(), view

    observed = check(function, leaves((3, 3)), leaves((2, 3)))
    assert succeeds(observed)
    assert observed[0].facts["output 0 and output 1 after the call: relation"] == ("same storage",)


@BOTH
def test_result_that_is_transposed_in_place(grad: bool) -> None:
    """A result changes its own strides before it comes back."""

    def function(x: Tensor) -> Tensor:
        result = torch.mul(x, 3)
        result.t_()
        return result

    assert succeeds(check(function, leaves((2, 4), grad=grad)))


@BOTH
def test_result_that_is_transposed_and_detached_in_place(grad: bool) -> None:
    """A result changes its strides and drops its history in place."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        result = torch.mul(x, 3)
        result.t_()
        result.detach_()
        return result, x + 1

    assert succeeds(check(function, leaves((2, 4), grad=grad)))


@BOTH
def test_views_before_and_after_a_transposition_in_place(grad: bool) -> None:
    """Views of a result from before and after it changed its strides, and the result."""

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = torch.mul(x, 3)
        before = result.unsqueeze(0)
        result.t_()
        return before, result, result.unsqueeze(0)

    assert succeeds(check(function, leaves((2, 4), grad=grad)))


@BOTH
def test_views_of_two_results(grad: bool) -> None:
    """Two views of one result with a view of another between them."""

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, other = torch.mul(x, 3), torch.mul(x, 4)
        return one.view(-1), other.transpose(1, 0), one.transpose(1, 0)

    assert succeeds(check(function, leaves((3, 3), grad=grad)))


@BOTH
def test_result_and_view_of_equal_shape(grad: bool) -> None:
    """A one-dimensional result and its view of the same shape are two tensors; writing to one changes the other."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        result = x.mul(2)
        return result, result.view(-1)

    assert succeeds(check(function, leaves((3,), grad=grad)))


def test_view_of_a_sum_is_writable() -> None:
    """A flattened sum can be written to afterwards, and differentiated."""

    def function(x: Tensor) -> Tensor:
        return (x + 1).view(-1)

    observed = check(function, leaves((3, 3)))
    assert observed[-1].facts["writing to output 0"] == "works"


@BOTH
@pytest.mark.parametrize("more", ["parts", "parts, result", "parts, view", "parts, result, view"])
def test_parts_of_a_result(grad: bool, more: str) -> None:
    """Parts that one call makes several of, alone or with the result itself, a view of it, or both.

    In-place on a part is an error, on the result or a view it is not, and takes the parts' history.
    """

    def function(x: Tensor) -> list[Tensor]:
        result = torch.mul(x, 3)
        outputs = list(result.unbind(0))
        if "result" in more:
            outputs.append(result)
        if "view" in more:
            outputs.append(result.view(result.shape))
        return outputs

    assert succeeds(check(function, leaves((3, 3), grad=grad)))


def test_part_and_a_product_of_it() -> None:
    """One part of a split comes back, and something that was computed from a view of it."""

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        part = (x + x).split([4, 4], dim=1)[1]
        return part, part.unsqueeze(-1) * y

    assert succeeds(check(function, leaves((8, 8), (1, 4, 1))))


@pytest.mark.parametrize("outputs", ["view", "views", "result, view"])
def test_history_of_a_view_is_eagers(outputs: str) -> None:
    """After in-place on the base, a returned view's history is regenerated from it: views are views to autograd."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        result = x.clone()
        if outputs == "view":
            return (x.view(-1),)
        return (result.view(-1), result.view(-1)) if outputs == "views" else (result, result.view(-1))

    def history(called: object) -> tuple[list[str], Tensor | None]:
        leaf = values(2, 2, grad=True)
        x = leaf * 1
        made = called(x)  # type: ignore[operator]
        base = x if outputs == "view" else made[0]
        base.mul_(2)
        names = [type(tensor.grad_fn).__name__ for tensor in made if tensor is not base]
        sum(tensor.sum() for tensor in made).backward()
        return names, leaf.grad

    expected, gradient = history(function)
    found, same = history(sg.jit(function, executors=["torch"]))
    assert found == expected
    assert gradient is not None
    assert same is not None
    assert torch.equal(gradient, same)
