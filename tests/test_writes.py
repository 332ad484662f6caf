"""Writes that autograd does not see, in-place on leaves and views, and unusual backward calls: all exactly eager's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import switchgear as sg
from tests.falling_back import assert_falls_back, falls_back
from tests.in_turn import in_turn
from tests.oracle import differences
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager

Function = Callable[..., Any]
Backward = Callable[[Any], None]


def arguments() -> list[torch.Tensor]:
    """Two leaves that require grad and one that does not."""
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(3, 4, dtype=torch.float64, generator=generator) for _ in range(3)]
    return [made[0].requires_grad_(), made[1].requires_grad_(), made[2]]


def backward_of_all(output: Any) -> None:
    """Backward from every output that requires grad, summed."""
    outputs = [output] if isinstance(output, torch.Tensor) else list(output)
    total = sum(leaf.sum() for leaf in outputs if leaf.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()


def observe(function: Function, backward: Backward) -> dict[str, Any]:
    """All that a call and its backward leave behind; an exception too."""
    inputs = arguments()
    try:
        output = function(*inputs)
        backward(output)
    except RuntimeError as error:
        return {"error": str(error), "inputs": inputs}
    return {"output": output, "inputs": inputs, "gradients": [leaf.grad for leaf in inputs]}


def check(function: Function, backward: Backward = backward_of_all) -> dict[str, Any]:
    """Compare eager with the first and with a cached call; the eager observation."""
    expected = observe(function, backward)
    jitted = sg.jit(function, executors=EXECUTORS)
    for call in ("first", "cached"):
        found = observe(jitted, backward)
        faults = list(differences(expected, found, f"{call} call of {function.__name__}"))
        assert not faults, "\n".join(faults)
    return expected


# --- the five writes that autograd does not see, to an intermediate and to an input ---


def no_grad_to_result(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    y = x + w
    with torch.no_grad():
        y.mul_(2)
    return y * y * w


def no_grad_to_input(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x * x * w


def detach_to_result(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    y = x + w
    y.detach().mul_(2)
    return y * y * w


def detach_to_input(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    x.detach().mul_(2)
    return x * x * w


def data_to_result(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    y = x + w
    y.data.mul_(2)
    return y * y * w


def data_to_input(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    x.data.mul_(2)
    return x * x * w


def data_assigned(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    y = x + w
    y.data = c * 3
    return y * y * w


def detached_factor(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return x.detach() * x * w


def detached_factor_of_result(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    y = x * w
    return y.detach() * y + y


def no_grad_to_view_of_result(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    y = x + w
    with torch.no_grad():
        y[0].fill_(5)
        y[:, 1].add_(c[:, 0])
    return y * y * w


def no_grad_to_tracked_view(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    y = x * w
    row = y[0]
    with torch.no_grad():
        row.mul_(5)
    return y * w + row * c[0]


def detached_then_tracked(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    y = x + w
    y.detach().mul_(2)
    y.add_(w)
    return y * y


def write_behind_a_view(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x + w
    row = y[1]
    y.data.mul_(2)
    return row * w[0], y


UNSEEN = [no_grad_to_input, detach_to_input, detached_factor, detached_factor_of_result]
TO_A_RESULT = [
    no_grad_to_result,
    detach_to_result,
    data_to_result,
    data_assigned,
    no_grad_to_view_of_result,
    no_grad_to_tracked_view,
    detached_then_tracked,
    write_behind_a_view,
]


@in_turn(function=UNSEEN)
def test_write_that_autograd_does_not_see(function: Function) -> None:
    assert "error" not in check(function)


@in_turn(function=TO_A_RESULT)
def test_write_that_autograd_does_not_see_to_a_result_falls_back(function: Function) -> None:
    assert_falls_back(function, lambda: tuple(arguments()), "no input .* was written to where autograd does not see")


def test_a_program_with_a_write_that_autograd_does_not_see_is_printed_as_python_that_runs() -> None:
    jitted = sg.jit(no_grad_to_input, executors=["torch"])
    expected = jitted(*arguments())
    captured = sg.last_traces(jitted)[0]
    namespace: dict[str, Any] = dict(captured.constants)
    exec(captured.python(), namespace)
    assert "set_value" in captured.python()
    assert torch.equal(namespace[captured.name](*arguments())[0], expected)


def test_write_through_data_that_the_backward_reads_falls_back() -> None:
    assert_falls_back(data_to_input, lambda: tuple(arguments()), "the backward reads a value that the function writes")


# --- writes that autograd sees ---


def add_to_constant(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    c.add_(1)
    return c * x


def write_to_view_of_constant(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    c[1].mul_(3)
    c.view(-1)[2:4].zero_()
    return c * x


def constant_becomes_differentiable(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    held = c.clone()
    held.mul_(x)
    held[0] = w[1]
    return held * w


def write_to_view_of_result(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    y[:, 0].mul_(w[:, 0])
    y.t()[1] = c[:, 1]
    return y, y.sum(0)


@pytest.mark.parametrize(
    "function", [add_to_constant, write_to_view_of_constant, constant_becomes_differentiable, write_to_view_of_result]
)
def test_write_that_autograd_sees(function: Function) -> None:
    assert "error" not in check(function)


def in_place_on_leaf(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x * w


def in_place_on_view_of_leaf(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    x[0].mul_(2)
    return x * w


def in_place_on_view_of_view_of_leaf(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    x.view(-1)[2:].add_(1)
    return x * w


@in_turn(function=[in_place_on_leaf, in_place_on_view_of_leaf, in_place_on_view_of_view_of_leaf])
def test_in_place_on_a_leaf_that_requires_grad_is_eagers_error(function: Function) -> None:
    assert "leaf Variable that requires grad" in check(function)["error"]


# --- backward calls ---


def product(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return (x @ w.t()).tanh()


def two_outputs(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.exp() * c, w.sin()


def mixed_outputs(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> dict[str, Any]:
    values, indices = x.max(dim=1)
    return {
        "values": values,
        "indices": indices,
        "frozen": c * 2,
        "number": 3,
        "none": None,
        "pair": (x * w, w.argmax()),
    }


def transposed_grad(output: torch.Tensor) -> None:
    output.backward(torch.arange(9.0, dtype=torch.float64).view(3, 3).t())


def expanded_grad(output: torch.Tensor) -> None:
    output.backward(torch.tensor(2.0, dtype=torch.float64).expand(3, 3))


def strided_grad(output: torch.Tensor) -> None:
    output.backward(torch.arange(18.0, dtype=torch.float64).view(3, 6)[:, ::2])


@in_turn(backward=[transposed_grad, expanded_grad, strided_grad])
def test_non_contiguous_grad_output(backward: Backward) -> None:
    assert "error" not in check(product, backward)


@pytest.mark.parametrize("used", [0, 1])
def test_unused_output_gives_no_gradient_at_all(used: int) -> None:
    expected = check(two_outputs, lambda output: output[used].sum().backward())
    assert [gradient is None for gradient in expected["gradients"]] == [used == 1, used == 0, True]


def test_outputs_of_every_kind_keep_their_structure() -> None:
    expected = check(mixed_outputs, lambda output: output["pair"][0].sum().backward())
    assert "error" not in expected
    check(mixed_outputs, lambda output: output["values"].sum().backward())


def test_backward_twice_is_eagers_error() -> None:
    def twice(output: torch.Tensor) -> None:
        output.sum().backward()
        output.sum().backward()

    assert "second time" in observe(product, twice)["error"]
    assert "second time" in observe(sg.jit(product, executors=["torch"]), twice)["error"]


def test_retained_graph_gives_the_same_gradient_again() -> None:
    def twice(output: torch.Tensor) -> None:
        output.sum().backward(retain_graph=True)
        output.sum().backward()

    check(product, twice)


# --- through views that PyTorch's functionalization brings back to their base inexactly, or not at all ---


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.expand(2, 3, 4),
        lambda y: y.expand(2, 3, 4)[0],
        lambda y: y.expand(1, 3, 4),
        lambda y: y.as_strided((2, 3), (1, 1)),
        lambda y: y.as_strided((2, 3), (4, 1)),
        lambda y: y.unfold(1, 2, 1),
        lambda y: y.unfold(1, 2, 3),
    ],
    ids=["expand", "row of expand", "expand of nothing", "overlap", "as_strided", "unfold", "unfold with gaps"],
)
def test_writes_through_views_that_cannot_be_exact_are_refused(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        view(y).mul_(0.5)
        return y

    assert_falls_back(
        function,
        lambda: (torch.arange(12.0).reshape(3, 4).clone().requires_grad_(),),
        "a write (through|that PyTorch cannot make functional)",
    )


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y[:, ::2].add_(y[:, 2:3]),
        lambda y: y[1:].copy_(y[:-1]),
        lambda y: y.__setitem__(slice(1, 3), y[:2]),
        lambda y: y.mul_(y[0]),
        lambda y: torch.mul(y[:3, :3], y[:3, :3].t(), out=y[:3, :3]),
    ],
    ids=["strided", "rows", "setitem", "broadcast", "out"],
)
def test_a_write_that_reads_what_it_overwrites_is_refused(write: Callable[[torch.Tensor], Any]) -> None:
    """Eager refuses it too, where it can tell that they overlap."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        write(y)
        return y

    assert_falls_back(function, lambda: (torch.arange(16.0).reshape(4, 4) + 1,), "overlaps that of another argument")


def test_write_through_a_complex_view_of_a_real_view() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.view_as_real(torch.complex(x, x) * 2)
        torch.view_as_complex(y).detach().mul_(0.5)
        y.mul_(2)
        return y

    x = torch.randn(3, 4)
    assert torch.equal(sg.jit(function, executors=["torch"])(x), function(x))


# --- the gradient of what is written to through a view ---


def zero_row(x: torch.Tensor) -> torch.Tensor:
    x[1:] = 0
    return x


def write_row(x: torch.Tensor) -> torch.Tensor:
    x[0].mul_(3)
    return x


def write_through_two_views(x: torch.Tensor) -> torch.Tensor:
    x[1:].t()[1].mul_(3)
    return x


def write_transposed(x: torch.Tensor) -> torch.Tensor:
    x.t().mul_(2)
    return x


def write_by_itself(x: torch.Tensor) -> torch.Tensor:
    x[0].mul_(x[0].clone())
    return x


def write_by_a_view(x: torch.Tensor) -> torch.Tensor:
    x[0].mul_(x.clone()[1]).add_(x[1].clone())
    return x


def write_twice(x: torch.Tensor) -> torch.Tensor:
    row = x[0]
    row *= x[1].clone()
    row.copy_(x[2].clone() * row.clone())
    return x


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("weight", [0.0, -0.0, 1.5])
@pytest.mark.parametrize(
    "write",
    [
        zero_row,
        write_row,
        write_through_two_views,
        write_transposed,
        write_by_itself,
        write_by_a_view,
        write_twice,
    ],
)
def test_gradient_of_a_base_that_is_written_to_through_a_view(write: Function, weight: float, transposed: bool) -> None:
    def call(function: Function) -> list[torch.Tensor]:
        values = torch.arange(1.0, 13.0)
        leaf = (values.view(4, 3).t() if transposed else values.view(3, 4)).clone().requires_grad_()
        made = function(leaf)
        (grad,) = torch.autograd.grad((made * made).sum() * weight, leaf, create_graph=True)
        (second,) = torch.autograd.grad((grad * grad).sum(), leaf)
        return [made, grad, second]

    def program(x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = write(x * 1)
        return made

    is_turned = write is write_transposed and not transposed
    with falls_back("through a transposed view") if is_turned else contextlib.nullcontext():
        expected, found = call(program), call(sg.jit(program, executors=["torch"]))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("seed", range(3))
def test_a_norm_before_a_write_through_a_transposed_view(seed: int) -> None:
    """Its gradient is summed in the order in memory, which autograd's copy for the write has changed."""

    def program(x: torch.Tensor) -> torch.Tensor:
        turned = torch.nn.functional.batch_norm(x, None, None, training=True).t()
        turned.masked_fill_(turned > 1, 0)
        return turned @ turned.mT @ turned

    torch.manual_seed(seed)
    x = torch.randn(4, 4, requires_grad=True)
    expected = torch.autograd.grad(program(x).square().sum(), x)
    with falls_back("through a transposed view"):
        found = torch.autograd.grad(sg.jit(program, executors=["torch"])(x).square().sum(), x)
    assert torch.equal(*expected, *found)


@pytest.mark.parametrize("part", ["real", "imag"])
def test_gradient_of_a_complex_base_that_is_written_to_through_its_part(part: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        getattr(y, part).mul_(3)
        return y * y

    def call(function: Function) -> list[torch.Tensor]:
        leaf = torch.complex(torch.arange(12.0), -torch.arange(12.0)).view(4, 3).t().clone().requires_grad_()
        (grad,) = torch.autograd.grad(function(leaf).real.sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(torch.view_as_real(grad).square().sum(), leaf)
        return [grad, second]

    expected, found = call(program), call(sg.jit(program, executors=["torch"]))
    assert all(map(torch.equal, found, expected))


def scaled_or_new(x: torch.Tensor, scale: float) -> torch.Tensor:
    try:
        x *= scale
    except RuntimeError:
        x = x.float() * scale
    return x


def test_a_write_that_eager_would_not_cast() -> None:
    x = torch.tensor([1, 2, 3])
    with falls_back("torch.float32 to a tensor of torch.int64"):
        result = sg.jit(scaled_or_new, executors=EXECUTORS)(x, 1.5)
    assert torch.equal(result, torch.tensor([1.5, 3.0, 4.5]))
    assert torch.equal(x, torch.tensor([1, 2, 3]))


@pytest.mark.parametrize("function", [torch.mm, torch.add, lambda x, y, out: torch.cat([x, y], out=out)])
@pytest.mark.parametrize("shape", [(0,), (3, 3)])
def test_an_out_that_is_given_other_sizes(function: Function, shape: tuple[int, ...]) -> None:
    x, out = torch.randn(2, 2), torch.empty(shape)
    with (
        pytest.warns(UserWarning, match="other sizes|resized|please report"),
    ):
        result = sg.jit(function, executors=EXECUTORS)(x, x, out=out)
    assert result is out
    assert torch.equal(out, function(x, x, out=torch.empty(0)))


def test_an_out_of_another_dtype() -> None:
    out = torch.empty(2, dtype=torch.int32)
    with falls_back("to a tensor of torch.int32"), pytest.raises(RuntimeError, match="can't be cast"):
        sg.jit(torch.mul, executors=EXECUTORS)(torch.ones(2), 2.5, out=out)
