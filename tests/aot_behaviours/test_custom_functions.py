"""`torch.autograd.Function` and custom operators inside, gradients inside, and backward passes that write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.aot_behaviours.observation import check, leaves, results, succeeds, values
from tests.falling_back import falls_back

WRITES = "writes in place to a tensor that it is handed"

pytestmark = pytest.mark.beside_eager


def test_own_backward_is_used() -> None:
    """A function that is differentiated by a backward of its own; also where nothing requires grad."""

    class Cloned(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad + 1

    def function(x: Tensor) -> Tensor:
        return Cloned.apply(x)  # type: ignore[no-any-return,no-untyped-call]

    assert succeeds(check(function, leaves((3,)), leaves((3,), grad=False)))


@pytest.mark.parametrize("make", [leaves, results])
def test_own_backward_of_an_output_that_is_the_input(make: Any) -> None:
    """The forward returns its argument: a view of it comes out, and the own backward counts."""

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 0.5

    def function(x: Tensor) -> Tensor:
        return Same.apply(x)  # type: ignore[no-any-return,no-untyped-call]

    assert succeeds(check(function, make((2, 2))))


@pytest.mark.parametrize("grad", [False, True])
def test_backward_that_writes_to_what_it_saved(grad: bool) -> None:
    """The backward scales a saved input in place: the input has changed after the backward, not after the call."""

    class Writing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            x.mul_(2)
            return grad.clone()

    def function(x: Tensor, y: Tensor) -> Tensor:
        return x * Writing.apply(y)  # type: ignore[no-any-return,no-untyped-call]

    assert succeeds(check(function, results((3, 3), (3, 3), grad=(True, grad))))


def test_backward_that_transposes_what_it_saved() -> None:
    """The backward changes the strides of a saved input in place."""

    class Transposing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            ctx.save_for_backward(y)
            return x.clone(), y.clone()

        @staticmethod
        def backward(ctx: Any, grad_x: Tensor, grad_y: Tensor) -> tuple[Tensor, Tensor]:
            (y,) = ctx.saved_tensors
            y.transpose_(1, 0)
            return grad_x.clone(), grad_y.clone()

    def function(x: Tensor, y: Tensor) -> Tensor:
        one, other = Transposing.apply(x, y)  # type: ignore[no-untyped-call]
        return one * other  # type: ignore[no-any-return]

    make = results((3, 3), (3, 3), grad=(True, False))
    check(function, make)


def test_backward_that_writes_to_its_grad_output() -> None:
    """The backward scales the grad output in place."""

    class Writing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            grad.mul_(2)
            return grad.clone()

    def function(x: Tensor, y: Tensor) -> Tensor:
        return Writing.apply(x * y).mul(2)  # type: ignore[no-any-return,no-untyped-call]

    assert succeeds(check(function, leaves((3, 3), (3, 3))))


def test_forward_and_backward_that_write_to_lists() -> None:
    """In-place on lists: an input and a result in the forward, what was saved in the backward."""

    class Writing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            torch._foreach_mul_([y], [2])
            z = y + 1
            torch._foreach_mul_([z], [3])
            ctx.save_for_backward(z)
            return z * x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            (z,) = ctx.saved_tensors
            torch._foreach_mul_([z], [4])
            return grad * z, grad * z

    def function(x: Tensor, y: Tensor) -> Tensor:
        return Writing.apply(x, y).neg_().clone()  # type: ignore[no-any-return,no-untyped-call]

    assert succeeds(check(function, leaves((3, 3), (3, 3), grad=(True, False))))


def test_forward_that_writes_to_lists_of_what_needs_no_grad() -> None:
    """The same where the only input of the custom function requires no grad: its backward never runs."""

    class Writing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            torch._foreach_mul_([x], [2])
            y = x + 1
            torch._foreach_mul_([y], [3])
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise AssertionError("nothing requires grad")

    def function(x: Tensor, y: Tensor) -> Tensor:
        return Writing.apply(y) * x  # type: ignore[no-any-return,no-untyped-call]

    assert succeeds(check(function, leaves((3, 3), (3, 3), grad=(True, False))))


@pytest.mark.parametrize("forward_too", [False, True])
def test_backward_that_writes_to_an_input_it_keeps(forward_too: bool) -> None:
    """The input is kept on the context, not saved; it is added to in the backward, and before that in the forward."""

    class Writing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            if forward_too:
                y.add_(1)
            ctx.y = y
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            ctx.y.add_(grad * 0 + 1)
            return grad, None

    def function(x: Tensor, y: Tensor) -> Tensor:
        return Writing.apply(x, y)  # type: ignore[no-any-return,no-untyped-call]

    assert succeeds(check(function, leaves((2,), (2,), grad=(True, False))))


@pytest.fixture(scope="module")
def cloning() -> Any:
    """A custom operator whose registered backward zeroes an argument of its forward."""

    @torch.library.custom_op("switchgear_aot_behaviours::cloned", mutates_args=())
    def cloned(x: Tensor, y: Tensor) -> Tensor:
        return x.clone()

    def keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        _, ctx.y = inputs

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        with torch.no_grad():
            ctx.y.zero_()
        return grad * 2, None

    cloned.register_fake(lambda x, y: torch.empty_like(x))
    cloned.register_autograd(backward, setup_context=keep)
    return cloned


def test_backward_of_a_custom_operator_that_writes_to_an_input(cloning: Any) -> None:
    """One argument is written to in the forward, another, under `no_grad`, in the operator's backward."""

    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        z.mul_(5)
        return cloning(x, y) + z  # type: ignore[no-any-return]

    assert succeeds(check(function, results((3,), (3,), (3,), grad=(True, False, False))))


def test_second_order_through_a_backward_that_writes(cloning: Any) -> None:
    """With `create_graph`, the backward writes to an input that requires grad."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return cloning(x, y)  # type: ignore[no-any-return]

    def gradient(called: Any) -> tuple[Tensor, Tensor]:
        x, y = values(3, grad=True), values(3, grad=True)
        x_in, y_in = x.clone(), y.clone()
        (grad,) = torch.autograd.grad(called(x_in, y_in).sum(), x, create_graph=True)
        return grad, y_in

    expected = gradient(function)
    with falls_back(WRITES):
        found = gradient(sg.jit(function, executors=["torch"]))
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)


def test_gradient_inside() -> None:
    """`torch.autograd.grad` inside the function."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(torch.exp(x), x)

    assert succeeds(check(function, leaves(())))


def test_gradient_inside_of_more_than_one_input() -> None:
    """A gradient inside by two inputs, used further and differentiated from outside."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        grads = torch.autograd.grad((x * x * y).sum(), (x, y), create_graph=True)
        return grads[0] + grads[1]

    assert succeeds(check(function, leaves((3,), (3,))))
