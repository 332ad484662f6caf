"""Capture: small functions against eager, what is refused, and that a failure leaves nothing behind."""

from __future__ import annotations

import contextlib
import enum
import pathlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import switchgear as sg
from switchgear import errors
from switchgear_core.record.user_code import is_own_file
from switchgear_frontend.known_calls import what_it_does
from tests.core.against_eager import check, numbers
from tests.databases.verdict import global_state
from tests.falling_back import assert_falls_back, falls_back
from tests.in_turn import in_turn
from tests.oracle import fallbacks_recorded

Function = Callable[..., Any]
T = torch.Tensor


def jit(function: Function) -> Any:
    return sg.jit(function, executors=["torch"])


# --- in-place ---


def in_place_chain(x: T, w: T) -> T:
    y = x * 2
    y.add_(w).mul_(w).sub_(1)
    return y * x


def in_place_on_view(x: T, w: T) -> T:
    y = x.clone()
    y[1].mul_(w[0])
    y.view(-1)[::3].neg_()
    return y


def in_place_seen_through_view(x: T, w: T) -> T:
    y = x * 1
    column = y[:, 1]
    y.mul_(w)
    return column * 2


def in_place_on_result_read_before(x: T, w: T) -> T:
    y = x.exp()
    before = y * w
    y.data  # noqa: B018
    y = y.clone()
    y.add_(before)
    return y * before


def in_place_activation(x: T, w: T) -> T:
    return functional.relu(functional.leaky_relu(x * w, 0.1, inplace=True) - 0.2, inplace=True)


def augmented_assignment(x: T, w: T) -> T:
    y = x + 0
    y += w
    y *= x
    y /= 3
    y **= 2
    y -= 1
    return y


def out_argument(x: T, w: T) -> T:
    with torch.no_grad():
        y = torch.empty_like(x)
        torch.add(x, w, out=y)
    return y * x


def swapped_rows(x: T, w: T) -> T:
    y = x.clone()
    y[0], y[1] = y[1].clone(), y[0].clone()
    return y * w


def scatter_and_index(x: T, w: T) -> T:
    index = torch.tensor([[0, 1, 0, 2], [2, 2, 1, 0], [1, 0, 2, 1]])
    y = torch.zeros_like(x).scatter_add_(0, index, x)
    y.index_add_(0, torch.tensor([2, 0]), w[:2])
    return y.index_copy_(1, torch.tensor([3]), x[:, :1]) * w


def in_place_in_a_loop(x: T, w: T) -> T:
    total = torch.zeros((), dtype=x.dtype)
    for row in x:
        total.add_((row * w[0]).sum())
    return total


# --- set-item ---


def set_item_number(x: T, w: T) -> T:
    y = x * w
    y[1, 2] = 7
    y[..., 0] = -1.5
    return y * x


def set_item_tensor(x: T, w: T) -> T:
    y = torch.zeros(3, 4, dtype=x.dtype)
    y[0] = x[0]
    y[1:, ::2] = w[1:, ::2]
    return y * x


def set_item_mask(x: T, w: T) -> T:
    y = x * 1
    y[w > 0] = 0.5
    return y * w


def set_item_index(x: T, w: T) -> T:
    y = x * 1
    y[torch.tensor([2, 0])] = w[:2]
    y[[0, 1], [1, 3]] = w[2, :2]
    return y


def set_item_broadcast(x: T, w: T) -> T:
    y = x * 1
    y[:] = w[0]
    y[None, :, 1] = x[:, 2]
    return y * w


def get_item_views(x: T, w: T) -> tuple[T, ...]:
    return x[0], x[:, None], x[..., -1], x[1:, 1:3], w[None] * 2


def get_item_copies(x: T, w: T) -> tuple[T, ...]:
    return x[[2, 0]], x[torch.tensor([2, 1, 1])], x[None] * w


# --- grad mode, detach ---


def no_grad_region(x: T, w: T) -> T:
    with torch.no_grad():
        scale = (x * w).mean()
    return x * scale


def no_grad_decorated(x: T, w: T) -> T:
    @torch.no_grad()
    def scaled(value: T) -> T:
        return value * 2

    return scaled(x) * w


def enable_grad_inside_no_grad(x: T, w: T) -> T:
    with torch.no_grad():
        a = x * 2
        with torch.enable_grad():
            b = x * 3
        return a + b * w


def set_grad_enabled(x: T, w: T) -> tuple[T, T]:
    with torch.set_grad_enabled(False):
        y = x * w
    return y, y + x


def detach_one_path(x: T, w: T) -> T:
    return x * (x * w).detach() + w


def detach_everything(x: T, w: T) -> T:
    return (x * w).detach()


def straight_through(x: T, w: T) -> T:
    return x + (x.round() - x).detach()


def only_second_needed(x: T, w: T) -> T:
    return x.detach() * w


def integer_path(x: T, w: T) -> tuple[T, T]:
    order = x.argsort(dim=1)
    return w.gather(1, order), order


# --- random ---


def dropout(x: T, w: T) -> T:
    return functional.dropout(x * w, 0.3)


def many_draws(x: T, w: T) -> tuple[T, ...]:
    noise = torch.rand_like(x) + torch.randn(4) + torch.randint(0, 9, (3, 1))
    coin = torch.bernoulli(torch.full((4,), 0.5))
    return x * noise + coin, torch.randperm(5), torch.empty(3).uniform_(), torch.normal(0.0, 1.0, (2,))


def unused_draw(x: T, w: T) -> T:
    torch.rand(3)
    return x + torch.rand(3, 4)


def draw_in_place(x: T, w: T) -> T:
    y = x * w
    y.bernoulli_(0.5)
    z = x * 1
    z.normal_()
    return y * x + z * w


# once: aten.bernoulli.p draws in another order than bernoulli_ where the tensor is not contiguous
def dropout_of_a_transposed_tensor(x: T, w: T) -> tuple[T, T]:
    return functional.dropout(x.t(), 0.5), torch.rand_like(w.t())


def random_attention(x: T, w: T) -> T:
    query = (x @ w.t()).reshape(1, 1, 3, 3)
    return functional.scaled_dot_product_attention(query, query, query, dropout_p=0.4)


# --- sizes, spellings, python ---


def sizes(x: T, w: T) -> T:
    rows, columns = x.shape
    return (x * w).reshape(columns, rows) * x.size(0) / x.numel() + len(x) * x.dim()


def operators(x: T, w: T) -> T:
    return (1 - x) * (2 / (w + 3)) @ (x.T**2) - (-abs(w)) @ (3 * w).mT + (x % 2) @ (w.detach() // 0.3).t()


def comparisons(x: T, w: T) -> T:
    return torch.where((x > w) & ~(x == 0) | (w <= 0.1), x, w * 2)


def several_outputs(x: T, w: T) -> tuple[Any, ...]:
    values, indices = x.topk(2, dim=1)
    first, *rest = w.split(1, dim=1)
    return values, indices, first, rest, torch.linalg.qr(x @ x.T + 2 * torch.eye(3, dtype=x.dtype))


def returned_twice(x: T, w: T) -> tuple[T, T, T]:
    y = x * w
    return y, y, y.clone()


def returned_input(x: T, w: T) -> tuple[T, T, T]:
    return x, x * w, w


def returned_view_of_input(x: T, w: T) -> tuple[T, T, T]:
    return x.t(), w[0], x.view(-1)


def returned_views_of_one(x: T, w: T) -> tuple[T, T, T]:
    y = x * w
    return y, y.view(-1), y[0]


def returned_constant(x: T, w: T) -> tuple[Any, ...]:
    return torch.tensor([1, 2]), 3, "three", x.shape, x.dtype, x.device, None, torch.ones(2)


def nothing_returned(x: T, w: T) -> None:
    x * w


def numpy_style(x: T, w: T) -> T:
    return torch.as_tensor(2.5) * x.sum(axis=0) + x.max(axis=1)[0].sum() * w.mean(axis=0, keepdims=True)  # type: ignore[call-overload,no-any-return]


def einsum_and_friends(x: T, w: T) -> T:
    return torch.einsum("ij,kj->ik", x, w) + torch.stack([x[0], w[1]]).sum() + torch.cat([x, w]).logsumexp(0).max()


def composites(x: T, w: T) -> T:
    y = functional.layer_norm(functional.gelu(functional.linear(x, w, w[:, 0])), (3,))
    return functional.cross_entropy(y, torch.tensor([0, 2, 1])) + functional.softmax(y, -1).var()


def changed_in_place_after_return_value_made(x: T, w: T) -> tuple[T, T]:
    y = x * w
    z = y[0]
    y.mul_(2)
    return z, y


FUNCTIONS = [
    in_place_chain,
    in_place_on_view,
    in_place_seen_through_view,
    in_place_on_result_read_before,
    in_place_activation,
    augmented_assignment,
    out_argument,
    swapped_rows,
    scatter_and_index,
    in_place_in_a_loop,
    set_item_number,
    set_item_tensor,
    set_item_mask,
    set_item_index,
    set_item_broadcast,
    get_item_views,
    get_item_copies,
    no_grad_region,
    no_grad_decorated,
    enable_grad_inside_no_grad,
    set_grad_enabled,
    detach_one_path,
    detach_everything,
    straight_through,
    only_second_needed,
    integer_path,
    dropout,
    many_draws,
    unused_draw,
    draw_in_place,
    dropout_of_a_transposed_tensor,
    random_attention,
    sizes,
    operators,
    comparisons,
    several_outputs,
    returned_twice,
    returned_input,
    returned_view_of_input,
    returned_views_of_one,
    returned_constant,
    nothing_returned,
    numpy_style,
    einsum_and_friends,
    composites,
    changed_in_place_after_return_value_made,
]
WANTED = {"both": (True, True), "first": (True, False), "second": (False, True), "none": (False, False)}


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
@in_turn(function=FUNCTIONS)
def test_function_is_eagers(function: Function, wanted: tuple[bool, bool]) -> None:
    check(function, numbers(3, 4, grad=wanted[0]), numbers(4, 3).t().clone().contiguous().requires_grad_(wanted[1]))


@in_turn(function=FUNCTIONS)
def test_function_is_eagers_without_gradients(function: Function) -> None:
    check(function, numbers(3, 4, grad=True), numbers(3, 4), gradient=False)


# --- inputs of every kind ---


def arithmetic(x: T, w: T) -> T:
    return (x * w).sum() + (x + w)


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers(4, 3).t(),
        lambda: numbers(3, 8)[:, ::2],
        lambda: numbers(5, 4)[1:4],
        lambda: numbers(4).expand(3, 4),
        lambda: numbers(1, 4),
        lambda: numbers(),
        lambda: torch.empty(0, 4, dtype=torch.float64).new_ones(1, 4)[:0].sum(0),
        lambda: numbers(3, 4, dtype=torch.float32),
        lambda: numbers(3, 4, dtype=torch.bfloat16),
        lambda: torch.arange(12).reshape(3, 4),
        lambda: numbers(3, 4) > 0,
        lambda: torch.complex(numbers(3, 4), numbers(3, 4)),
        lambda: torch.complex(numbers(3, 4), numbers(3, 4)).conj(),
        lambda: torch.complex(numbers(3, 4), numbers(3, 4)).conj().imag,
        lambda: torch.nn.Parameter(numbers(3, 4)),
    ],
    ids=[
        "transposed",
        "strided",
        "offset",
        "expanded",
        "broadcast",
        "scalar",
        "empty sum",
        "f32",
        "bf16",
        "i64",
        "bool",
        "complex",
        "conjugate",
        "negative bit",
        "parameter",
    ],
)
def test_input_of_every_kind(make: Callable[[], T]) -> None:
    check(arithmetic, numbers(3, 4, grad=True), make())


def test_empty_input() -> None:
    check(arithmetic, torch.empty(0, 4, requires_grad=True), torch.empty(0, 4))


def test_input_that_is_no_leaf() -> None:
    check(arithmetic, numbers(3, 4, grad=True) * 2, numbers(3, 4, grad=True))


def test_complex_leaf_gets_its_gradient() -> None:
    def squared_distance(x: T, w: T) -> T:
        return ((x * x.conj() - w) * (1 + 2j)).abs().sum()

    z = torch.complex(numbers(3), numbers(3)).requires_grad_()
    check(squared_distance, z, numbers(3, grad=True))


def conjugate_again(x: T) -> tuple[T, bool, bool]:
    return x.conj() * 2, x.is_conj(), x.resolve_conj().is_conj()


def test_conjugate_bit_is_seen_inside() -> None:
    check(conjugate_again, torch.complex(numbers(3), numbers(3)).conj())


@pytest.mark.parametrize("grad", [True, False])
def test_same_tensor_twice(grad: bool) -> None:
    x = numbers(3, 4, grad=grad)
    check(arithmetic, x, x)


def test_same_tensor_twice_then_different_ones_then_again() -> None:
    jitted = jit(arithmetic)
    for same in (True, False, True, False):
        x, w = numbers(3, 4, grad=True), numbers(3, 4, grad=True)
        y, v = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        expected = torch.autograd.grad(arithmetic(x, x if same else w).sum(), [x, w], allow_unused=True)
        found = torch.autograd.grad(jitted(y, y if same else v).sum(), [y, v], allow_unused=True)
        assert [g is None for g in found] == [g is None for g in expected] == [False, same]
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True) if a is not None and b is not None)


def write_first(x: T, w: T) -> T:
    x.add_(1)
    return x * w


def test_same_tensor_twice_and_written_to() -> None:
    x = numbers(3)
    check(write_first, x, x)


def test_tensor_and_its_view() -> None:
    def both(x: T, w: T) -> T:
        return x.sum() * w

    x = numbers(3, 4, grad=True)
    check(both, x, x.detach())
    check(both, x.detach(), x.detach()[0])


def identity_inside(x: T, w: T) -> T:
    return x * 2 if x is w else x * 3


def test_identity_of_arguments_is_seen_inside() -> None:
    jitted = jit(identity_inside)
    x, w = numbers(3), numbers(3)
    for other in (x, w, x, w):
        assert torch.equal(jitted(x, other), identity_inside(x, other))


# --- mutated inputs ---


def test_returned_input_is_the_argument_itself() -> None:
    def changed(x: T) -> tuple[T, list[T]]:
        x.mul_(2)
        return x, [x]

    jitted = jit(changed)
    for _ in range(2):
        x = numbers(3)
        first, (second,) = jitted(x)
        assert first is x
        assert second is x
        assert torch.equal(x, numbers(3) * 2)


def test_the_same_result_returned_twice_is_one_tensor() -> None:
    jitted = jit(returned_twice)
    for _ in range(2):
        first, second, third = jitted(numbers(3, grad=True), numbers(3))
        assert first is second
        assert third is not first


@pytest.mark.parametrize("grad", [True, False])
def test_results_share_storage_as_eagers_do(grad: bool) -> None:
    def pointers(function: Function) -> list[bool]:
        x = numbers(3, 4, grad=grad)
        first, view, row = function(x, numbers(3, 4))
        storage = first.untyped_storage().data_ptr()
        return [t.untyped_storage().data_ptr() == storage for t in (view, row, x)]

    for function in (returned_views_of_one, returned_view_of_input):
        assert pointers(jit(function)) == pointers(function)


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "function",
    [returned_views_of_one, returned_twice, several_outputs, arithmetic],
)
def test_result_can_be_written_to_afterwards(function: Function, grad: bool) -> None:
    def then_written(target: Function) -> tuple[Any, ...]:
        x = numbers(3, 4, grad=grad) * 1
        result = target(x, numbers(3, 4))
        first = result if isinstance(result, T) else result[0]
        first.mul_(2)
        return first, result, x

    expected, found = then_written(function), then_written(jit(function))
    for one, other in zip(
        torch.utils._pytree.tree_leaves(expected), torch.utils._pytree.tree_leaves(found), strict=True
    ):
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad


def test_returned_view_of_an_input_is_written_to() -> None:
    x, y = numbers(3, 4, grad=True) * 1, numbers(3, 4, grad=True) * 1
    for argument, function in ((x, returned_view_of_input), (y, jit(returned_view_of_input))):
        function(argument, numbers(3, 4))[0].mul_(2)
    assert torch.equal(x, y)
    assert type(x.grad_fn) is type(y.grad_fn)


def write_to_non_leaf(x: T, w: T) -> T:
    x.mul_(w)
    return x * w


def write_to_non_leaf_view(x: T, w: T) -> T:
    x[0].add_(w[0])
    x.t()[1] = 3.0
    return (x * w).sum()


@pytest.mark.parametrize("function", [write_to_non_leaf, write_to_non_leaf_view])
def test_write_to_an_input_that_is_no_leaf(function: Function) -> None:
    def gradients(target: Function) -> list[Any]:
        leaf, w = numbers(3, 4, grad=True), numbers(3, 4, grad=True)
        x = leaf * 1
        result = target(x, w)
        (result.sum() + x.sum()).backward()
        return [result, x, leaf.grad, w.grad]

    jitted = jit(function)
    for _ in range(2):
        for expected, found in zip(gradients(function), gradients(jitted), strict=True):
            assert torch.equal(expected, found)


def test_write_bumps_the_version_so_that_a_stale_backward_is_eagers_error() -> None:
    def backward_after(target: Function) -> str:
        x, w = numbers(3), numbers(3, grad=True)
        y = x * w
        target(x, w.detach())
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
            y.sum().backward()
        return str(caught.value).split(":")[0]

    assert backward_after(jit(write_first)) == backward_after(write_first)


@pytest.mark.parametrize("overlap", ["same storage", "a view"])
def test_entry_for_inputs_apart_is_not_used_for_inputs_that_overlap(overlap: str) -> None:
    def both(function: Function) -> list[T]:
        seen = []
        for apart in (True, False, True):
            x = numbers(3, 4)
            other = x.detach() if overlap == "same storage" else x[:1]
            seen += [function(x, other.clone() if apart else other), x]
        return seen

    with fallbacks_recorded():  # of what shares memory and no history
        found = both(jit(write_first))
    assert all(torch.equal(one, other) for one, other in zip(found, both(write_first), strict=True))


@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6), (5, 2)])
@pytest.mark.parametrize("wrap", [False, True])
def test_writes_through_views_that_have_no_inverse(shape: tuple[int, int], wrap: bool) -> None:
    def fill_diagonal(x: T) -> T:
        y = x * 2
        y.fill_diagonal_(3.0, wrap=wrap)
        return y

    assert_falls_back(fill_diagonal, lambda: (numbers(*shape, grad=True),), r"as_strided.*test_capture\.py")


# --- what the function closes over ---


def test_closed_over_tensor_gets_its_gradient_and_is_read_at_every_call() -> None:
    held, frozen = numbers(3, grad=True), numbers(3)

    def scaled(x: T) -> T:
        return x * held + frozen

    jitted = jit(scaled)
    for _ in range(2):
        x = numbers(3, grad=True)
        expected = torch.autograd.grad(scaled(x).sum(), [x, held])
        found = torch.autograd.grad(jitted(x).sum(), [x, held])
        assert all(map(torch.equal, expected, found))
        with torch.no_grad():
            held.mul_(2)
            frozen.add_(1)


def test_closed_over_tensor_is_written_to() -> None:
    counter = torch.zeros(())

    def counting(x: T) -> T:
        counter.add_(1)
        return x + counter

    jitted = jit(counting)
    assert [jitted(torch.zeros(())).item() for _ in range(3)] == [1, 2, 3]
    assert counter.item() == 3


def test_closed_over_tensor_that_is_also_an_argument() -> None:
    held = numbers(3, grad=True)

    def doubled(x: T) -> T:
        return x * held

    jitted = jit(doubled)
    for x in (held, numbers(3, grad=True), held):
        expected = torch.autograd.grad(doubled(x).sum(), held)
        assert torch.equal(torch.autograd.grad(jitted(x).sum(), held)[0], expected[0])


def test_closed_over_module() -> None:
    layer = torch.nn.Linear(4, 2).double()

    def called(x: T) -> T:
        return functional.silu(layer(x))

    jitted = jit(called)
    for _ in range(2):
        x = numbers(3, 4, grad=True)
        wanted = [x, *layer.parameters()]
        expected = torch.autograd.grad(called(x).sum(), wanted)
        assert all(map(torch.equal, expected, torch.autograd.grad(jitted(x).sum(), wanted)))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    "value",
    [2, 2.5, True, None, "text", 1j, Colour.BLUE, torch.float32, slice(0, 2), torch.preserve_format, len, Ellipsis],
    ids=str,
)
def test_python_value_as_argument_and_result(value: Any) -> None:
    def through(x: T, given: Any) -> tuple[T, Any]:
        return x * 2, given

    result, same = jit(through)(numbers(3), value)
    assert torch.equal(result, numbers(3) * 2)
    assert same == value
    assert type(same) is type(value)


def test_dtype_promotion_with_python_numbers() -> None:
    def promoted(x: T, number: Any) -> tuple[T, ...]:
        return x + number, x * number, number / (x + 2), torch.full((2,), number)

    for x in (torch.arange(3), numbers(3, dtype=torch.float32), numbers(3) > 0):
        for number in (2, 2.5, 1j):
            check(promoted, x, number, gradient=False)


# --- what is traced ---


def test_module_path_and_line_are_recorded() -> None:
    class Inner(torch.nn.Module):
        def forward(self, x: T) -> T:
            return torch.sin(x)

    model = torch.nn.Sequential()
    model.add_module("first", Inner())
    model.add_module("second", torch.nn.Sequential(Inner()))
    jitted = jit(model)
    jitted(numbers(2))
    sources = [item.source for item in sg.last_traces(jitted)[0].bound_symbols]
    line = Inner.forward.__code__.co_firstlineno + 1
    assert [(found.module, found.line) for found in sources if found] == [("first", line), ("second.0", line)]


def test_composites_nest_and_spellings_are_one_symbol() -> None:
    def spelled(x: T, w: T) -> T:
        return x + torch.add(x, w) + x.add(w) + functional.multi_head_attention_forward.__name__.count("x")

    jitted = jit(spelled)
    jitted(numbers(2), numbers(2))
    assert {item.symbol.name for item in sg.last_traces(jitted)[0].bound_symbols} == {"torch.add"}


def test_attention_shows_its_linear_and_sdpa() -> None:
    attention = torch.nn.MultiheadAttention(4, 2)
    jitted = jit(attention)
    x = numbers(3, 1, 4, dtype=torch.float32)
    jitted(x, x, x, need_weights=False)
    (whole,) = [
        item for item in sg.last_traces(jitted)[0].bound_symbols if item.symbol.name.endswith("attention_forward")
    ]
    names = [part.symbol.name for part in whole.subsymbols]
    assert names.count("torch.nn.functional.linear") == 2
    assert "torch.nn.functional.scaled_dot_product_attention" in names


def test_grad_mode_is_recorded_and_requires_grad_is_exact() -> None:
    def mixed(x: T, w: T) -> tuple[T, ...]:
        with torch.no_grad():
            a = torch.sin(x)
        return a, torch.cos(x), torch.exp(w), x.argmax()

    jitted = jit(mixed)
    jitted(numbers(2, grad=True), numbers(2))
    found = {
        item.symbol.name: (item.grad_enabled, [proxy.requires_grad for proxy in item.outputs])
        for item in sg.last_traces(jitted)[0].bound_symbols
    }
    assert found == {
        "torch.sin": (False, [False]),
        "torch.cos": (True, [True]),
        "torch.exp": (True, [False]),
        "torch.argmax": (True, [False]),
    }


def test_views_made_under_no_grad() -> None:
    """PyTorch says that they require grad, with no history; eager's own answer is what counts."""

    def viewed(x: T, w: T) -> tuple[T, T]:
        with torch.no_grad():
            row, total = x[0], torch.zeros(3, 4, dtype=x.dtype)
            total[0] = w[0]
            for part in x:
                total.add_(part)
        return row * 2, total * w

    x, w = numbers(3, 4, grad=True), numbers(3, 4, grad=True)
    with torch.no_grad():
        assert torch.equal(jit(lambda value: value[0] * 2)(x), x[0] * 2)
    expected, found = viewed(x, w), jit(viewed)(x, w)
    assert all(map(torch.equal, expected, found))
    gradients = [torch.autograd.grad(total.sum(), [x, w], allow_unused=True) for _, total in (expected, found)]
    assert gradients[0][0] is gradients[1][0] is None
    assert torch.equal(gradients[0][1], gradients[1][1])


def test_sparse_result_is_eagers_and_so_is_its_backward() -> None:
    def sparse(x: T) -> T:
        return x.diag().to_sparse()

    x, gradients = numbers(3, grad=True), []
    expected, found = sparse(x), jit(sparse)(x)
    assert torch.equal(found.detach().to_dense(), expected.detach().to_dense())
    for result in (expected, found):
        gradients.append(torch.autograd.grad(result, x, numbers(3, 3).to_sparse())[0])
    assert torch.equal(*gradients)


def test_jitted_function_inside_a_jitted_function_is_one_trace() -> None:
    inner = jit(lambda x: torch.sin(x))

    def outer(x: T) -> T:
        return inner(x) * 2  # type: ignore[no-any-return]

    jitted = jit(outer)
    assert torch.equal(jitted(numbers(3)), torch.sin(numbers(3)) * 2)
    assert [item.symbol.name for item in sg.last_traces(jitted)[0].bound_symbols] == ["torch.sin", "torch.mul"]


def test_is_compiling_is_false_as_in_eager() -> None:
    answers = []

    def asks(x: T) -> T:
        answers.append(torch.compiler.is_compiling())
        return x * 2

    jit(asks)(numbers(2))
    assert answers == [False]


# --- failures leave nothing behind ---


def everything() -> tuple[Any, ...]:
    return (
        global_state(),
        torch.get_rng_state().tolist(),
        torch.autograd.Function.__dict__["apply"],
        torch.nn.Module.__call__,
        torch.Tensor.__add__,
    )


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    before = everything()
    yield
    assert everything() == before
    x = numbers(3, grad=True)
    x.sin().sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, numbers(3).cos())


class MyError(Exception):
    pass


def fails_at_once(x: T) -> T:
    raise MyError("at once")


def fails_after_operators(x: T) -> T:
    y = x * 2
    y.add_(1)
    raise MyError("after operators")


def fails_inside_no_grad(x: T) -> T:
    with torch.no_grad():
        torch.ones(3)
        raise MyError("inside no_grad")


def fails_inside_module(x: T) -> T:
    class Fails(torch.nn.Module):
        def forward(self, value: T) -> T:
            raise MyError("inside a module")

    return torch.nn.Sequential(torch.nn.Identity(), Fails())(x)  # type: ignore[no-any-return]


def fails_inside_autocast(x: T) -> T:
    with torch.autocast("cpu", torch.bfloat16):
        torch.mm(x.view(1, -1), x.view(-1, 1))
        raise MyError("inside autocast")


FAILING = [fails_at_once, fails_after_operators, fails_inside_no_grad, fails_inside_module, fails_inside_autocast]


@pytest.mark.usefixtures("nothing_left_behind")
@in_turn(function=FAILING)
def test_exception_of_the_user_is_unchanged_and_nothing_is_left(function: Function) -> None:
    jitted = jit(function)
    for _ in range(2):
        x = numbers(3, grad=True)
        with pytest.raises(MyError) as caught:
            jitted(x)
        error = caught.value
        assert str(error) in {"at once", "after operators", "inside no_grad", "inside a module", "inside autocast"}
        assert error.__cause__ is None
        assert error.__context__ is None
        frames = traceback.extract_tb(error.__traceback__)
        assert frames[-1].filename == __file__
        assert function.__name__ in [frame.name for frame in frames]
        assert x.grad is None
        assert torch.equal(x, numbers(3))


class Refusing(torch.nn.Module):
    """Counts what it refuses."""

    count: T

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.calls = 0

    def forward(self, x: T) -> T:
        self.count[1:] += 1
        self.calls += 1
        noise = torch.rand(2)
        if x.shape[0] > 3:
            raise MyError("too long")
        return x.sum() * noise


def test_what_a_function_did_before_it_raises_is_done() -> None:
    def after(module: Any) -> list[T]:
        torch.manual_seed(0)
        for size in (2, 4, 3, 5, 4):
            with contextlib.suppress(MyError):
                module(numbers(size))
        return [module.count, torch.tensor(module.calls), torch.get_rng_state()]

    for one, two in zip(after(Refusing()), after(jit(Refusing())), strict=True):
        assert torch.equal(one, two)


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, StopIteration, MyError])
def test_exception_of_any_kind_passes(kind: type[BaseException]) -> None:
    def fails(x: T) -> T:
        x * 2
        raise kind("this one")

    with pytest.raises(kind, match="this one"):
        jit(fails)(numbers(3))


@pytest.mark.usefixtures("nothing_left_behind")
def test_wrong_shapes_are_eagers_error() -> None:
    def message(function: Function) -> str:
        with pytest.raises(RuntimeError) as caught:
            function(numbers(2, 3), numbers(2, 3))
        return str(caught.value)

    def multiplied(x: T, w: T) -> T:
        return torch.mm(x, w)

    assert "2x3 and 2x3" in message(multiplied)
    assert "[2, 3] X [2, 3]" in message(jit(multiplied)) or "2x3 and 2x3" in message(jit(multiplied))


@pytest.mark.usefixtures("nothing_left_behind")
def test_wrong_call_is_pythons_error() -> None:
    def one(x: T) -> T:
        return x * 2

    with pytest.raises(TypeError, match=r"takes 1 positional argument but 2 were given"):
        jit(one)(numbers(2), numbers(2))
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'y'"):
        jit(one)(numbers(2), y=3)


def test_function_that_catches_its_own_error() -> None:
    def careful(x: T) -> T:
        try:
            return torch.mm(x, x)
        except RuntimeError:
            return x * 3

    check(careful, numbers(2, 3, grad=True))


@pytest.mark.usefixtures("nothing_left_behind")
def test_failed_capture_does_not_stop_the_next_one() -> None:
    fail = True

    def sometimes(x: T) -> T:
        if fail:
            raise MyError
        return x * 2

    jitted = jit(sometimes)
    with pytest.raises(MyError):
        jitted(numbers(3))
    fail = False
    assert torch.equal(jitted(numbers(3)), numbers(3) * 2)


@pytest.mark.usefixtures("nothing_left_behind")
def test_failure_inside_a_nested_jitted_function() -> None:
    inner = jit(fails_after_operators)

    def outer(x: T) -> T:
        try:
            return inner(x)  # type: ignore[no-any-return]
        except MyError:
            return x * 5

    assert torch.equal(jit(outer)(numbers(3)), numbers(3) * 5)


class Stateful(torch.nn.Module):
    """A module that is refused after it has changed everything it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(()))
        self.note = "before"
        self.kept: Any = None

    def forward(self, x: T) -> T:
        y = self.norm(x) * self.weight
        self.count.add_(1)  # type: ignore[operator]
        self.kept = y
        y.register_hook(lambda grad: grad)
        return y  # type: ignore[no-any-return]


@pytest.mark.usefixtures("nothing_left_behind")
def test_failure_leaves_the_module_as_it_was() -> None:
    module = Stateful()
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values = {name: tensor.detach().clone() for name, tensor in held.items()}
    with pytest.raises(errors.Unsupported, match="register_hook"):
        sg.jit(module, executors=["torch"], strict=True)(numbers(4, 3, dtype=torch.float32))
    now = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert all(now[name] is tensor and torch.equal(tensor, values[name]) for name, tensor in held.items())
    assert module.kept is None


def test_grad_mode_that_the_function_leaves_changed_is_eagers_too() -> None:
    def switches(x: T) -> T:
        torch._C._set_grad_enabled(False)
        return x * 2

    try:
        with falls_back("grad mode"):
            jit(switches)(numbers(3, grad=True))
        assert not torch.is_grad_enabled()
    finally:
        torch._C._set_grad_enabled(True)


# --- refused ---


def registers_hook(x: T) -> T:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    return y


def registers_post_hook(x: T) -> T:
    x.register_post_accumulate_grad_hook(lambda tensor: None)
    return x * 2


def backward_inside(x: T) -> T:
    (x * 2).sum().backward()
    return x


def autograd_backward_inside(x: T) -> T:
    torch.autograd.backward([(x * x).sum()])
    return x * 2


def reads_grad(x: T) -> T:
    return x if x.grad is None else x * x.grad


def functionalize_inside(x: T) -> T:
    return torch.func.functionalize(torch.sin)(x)  # type: ignore[no-any-return]


def linearize_inside(x: T) -> T:
    return torch.func.linearize(torch.sin, x)[1](x)  # type: ignore[no-any-return]


def detach_in_place(x: T) -> T:
    y = x * 2
    view = y[:1]
    y.detach_()
    return y * view


def requires_grad_inside(x: T) -> T:
    return x.detach().requires_grad_() * 2


def seeds_inside(x: T) -> T:
    torch.seed()
    return x + torch.rand(3)


def numpy_inside(x: T) -> T:
    return x * float(x.detach().numpy().sum())


def pointer_inside(x: T) -> T:
    return x * x.data_ptr()


def offset_of_result(x: T) -> Any:
    return x * x[1:].storage_offset()


def size_of_storage(x: T) -> T:
    return x * x.untyped_storage().nbytes()


def typed_storage(x: T) -> Any:
    return x * x.storage().size()


def asks_whether_it_is_a_view(x: T) -> T:
    return x * x._is_view()


def asks_for_its_base(x: T) -> T:
    return x if x._base is None else -x


def asks_for_its_version(x: T) -> T:
    return x * x._version


def asks_for_inference(x: T) -> T:
    return x * x.is_inference()


def asks_for_inference_by_function(x: T) -> T:
    return x * torch.is_inference(x)


def asks_whether_gradient_is_retained(x: T) -> T:
    return x * x.retains_grad


def asks_which_output_it_is(x: T) -> T:
    return x * x.output_nr


def asks_whether_memory_is_shared(x: T) -> Any:
    return x * x.is_shared()


def asks_whether_it_is_set_to(x: T) -> T:
    return x * x.is_set_to(x)


def generator_result(x: T) -> Any:
    return (x * index for index in range(3))


def map_result(x: T) -> Any:
    return map(torch.sin, [x])


def tolist_inside(x: T) -> Any:
    return x.tolist()


def item_inside(x: T) -> T:
    return x * x.sum().item()


def float_inside(x: T) -> T:
    return x * float(x.sum())


def bool_inside(x: T) -> T:
    return x if (x > 0).all() else -x


def index_by_data(x: T) -> T:
    return x[int(x.argmax())]


def nonzero_inside(x: T) -> T:
    return torch.nonzero(x)


def unique_inside(x: T) -> T:
    return x.unique()  # type: ignore[no-any-return]


def masked_select_inside(x: T) -> T:
    return torch.masked_select(x, x > 0)


def sets_data_of_input(x: T) -> T:
    x.data = torch.zeros(5, dtype=x.dtype)
    return x * 2


REFUSED: list[tuple[Function, type[Exception], str]] = [
    (registers_hook, errors.Unsupported, r"register_hook.*outside"),
    (registers_post_hook, errors.Unsupported, r"register_post_accumulate_grad_hook.*outside"),
    (
        backward_inside,
        errors.Unsupported,
        r"backward.*torch\.autograd\.grad inside.*call backward\(\) on the jitted function's result",
    ),
    (autograd_backward_inside, errors.Unsupported, r"torch\.autograd\.backward.*result"),
    (reads_grad, errors.Unsupported, r"\.grad.*pass the gradient as an argument"),
    (functionalize_inside, errors.Unsupported, r"torch\.func\.functionalize.*outside"),
    (linearize_inside, errors.Unsupported, r"torch\.func\.linearize.*outside"),
    (detach_in_place, errors.Unsupported, r"detach_\(\) inside a jitted function.*use detach\(\)"),
    (requires_grad_inside, errors.Unsupported, r"requires_grad.*outside"),
    (seeds_inside, errors.Unsupported, r"seed.*outside"),
    (numpy_inside, errors.Unsupported, r"numpy.*outside"),
    (pointer_inside, errors.Unsupported, r"data_ptr.*outside"),
    (offset_of_result, errors.Unsupported, r"storage_offset.*outside the jitted function"),
    (size_of_storage, errors.Unsupported, r"untyped_storage.*outside"),
    (typed_storage, errors.Unsupported, r"torch\.Tensor\.storage .*outside"),
    (asks_whether_it_is_a_view, errors.Unsupported, r"_is_view.*outside"),
    (asks_for_its_base, errors.Unsupported, r"\._base.*pass the base as an argument"),
    (asks_for_its_version, errors.Unsupported, r"\._version.*outside"),
    (asks_for_inference, errors.Unsupported, r"torch\.Tensor\.is_inference.*outside"),
    (asks_for_inference_by_function, errors.Unsupported, r"torch\.is_inference.*outside"),
    (asks_whether_gradient_is_retained, errors.Unsupported, r"\.retains_grad.*outside"),
    (asks_which_output_it_is, errors.Unsupported, r"\.output_nr.*outside"),
    (asks_whether_memory_is_shared, errors.Unsupported, r"is_shared.*outside"),
    (asks_whether_it_is_set_to, errors.Unsupported, r"is_set_to.*outside"),
    (generator_result, errors.Unsupported, r"returns a builtins\.generator.*return a list"),
    (map_result, errors.Unsupported, r"returns a builtins\.map"),
    (tolist_inside, errors.DataDependent, r"data of a tensor"),
    (item_inside, errors.DataDependent, r"data of a tensor"),
    (float_inside, errors.DataDependent, r"data of a tensor"),
    (index_by_data, errors.DataDependent, r"data of a tensor"),
    (nonzero_inside, errors.DataDependent, r"nonzero.*data of a tensor"),
    (unique_inside, errors.DataDependent, r"unique.*data of a tensor"),
    (masked_select_inside, errors.DataDependent, r"masked_select.*data of a tensor"),
    (sets_data_of_input, errors.CaptureError, r"t_0|data"),
]


@pytest.mark.usefixtures("nothing_left_behind")
@in_turn(function__kind__message=REFUSED)
def test_refused_with_a_clear_error(function: Function, kind: type[Exception], message: str) -> None:
    x = numbers(3, grad=True)
    with pytest.raises(kind, match=message):
        sg.jit(function, executors=["torch"], strict=True)(x)
    assert x.shape == (3,)
    assert x.grad is None
    assert torch.equal(x, numbers(3))
    assert not x._backward_hooks


def test_history_of_what_requires_no_gradient_is_known_to_be_none() -> None:
    def function(x: T) -> T:
        y = x.sin().detach()
        return y * 2 if y.grad_fn is None else y

    x = numbers(3, grad=True)
    assert torch.equal(sg.jit(function, executors=["torch"], strict=True)(x), function(x))


PLACED = [registers_hook, backward_inside, item_inside, nonzero_inside, reads_grad]


@in_turn(function=PLACED)
def test_refusal_names_the_line(function: Function) -> None:
    first = function.__code__.co_firstlineno
    with pytest.raises(errors.CaptureError, match=r"test_capture\.py:\d+") as caught:
        sg.jit(function, executors=["torch"], strict=True)(numbers(3, grad=True))
    line = int(str(caught.value).split("test_capture.py:")[1].split(":")[0].split(";")[0].split(",")[0].split(")")[0])
    assert first < line <= first + 2


class Subclass(torch.Tensor):
    pass


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.ones(3).as_subclass(Subclass), "Subclass.*subclass"),
        (lambda: torch.ones(3).to_sparse(), "sparse_coo.*strided"),
        (lambda: torch.ones(3, 3).to_sparse_csr(), "sparse_csr.*strided"),
        (lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]), "[Nn]ested"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), "quantised"),
    ],
    ids=["subclass", "coo", "csr", "nested", "quantised"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensor_of_a_kind_that_is_refused(make: Callable[[], T], message: str) -> None:
    held = make()
    with pytest.raises(errors.Unsupported, match=f"argument 0.*{message}"):
        sg.jit(lambda x: x.shape, executors=["torch"], strict=True)(held)
    with pytest.raises(errors.Unsupported, match=f"closes over.*{message}"):
        sg.jit(lambda x: x + held, executors=["torch"], strict=True)(numbers(3))
    with falls_back(f"argument 0.*{message}"):
        assert jit(lambda x: x.dtype)(held) is held.dtype


@pytest.mark.usefixtures("nothing_left_behind")
def test_argument_after_the_first_call_is_checked_too() -> None:
    jitted = jit(lambda x: x * 2)
    jitted(torch.ones(3))
    with falls_back("Subclass"):
        jitted(torch.ones(3).as_subclass(Subclass))
    with falls_back("sparse"):
        jitted(torch.ones(3).to_sparse())


@pytest.mark.usefixtures("nothing_left_behind")
def test_torch_func_around_a_jitted_function_runs_in_eager() -> None:
    def function(x: T) -> T:
        return (x * x).sum()

    jitted = jit(function)
    with falls_back(r"torch\.func.*sg\.grad"):
        assert torch.equal(torch.func.grad(jitted)(numbers(3)), numbers(3) * 2)
    jitted(numbers(3))
    for transform in (torch.func.grad, torch.func.vmap):
        x = numbers(3)
        assert torch.equal(transform(jitted)(x), transform(function)(x))


@pytest.mark.usefixtures("nothing_left_behind")
def test_calls_under_foreign_modes_run_in_eager() -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    jitted = jit(lambda x: x * 2)
    with Functions(), falls_back("Functions"):
        assert torch.equal(jitted(numbers(3)), numbers(3) * 2)
    with Dispatches(), falls_back("dispatch"):  # type: ignore[no-untyped-call]
        assert torch.equal(jitted(numbers(3)), numbers(3) * 2)


def test_constants_are_not_data_dependent() -> None:
    def asks_constants(x: T) -> T:
        if torch.tensor(3).item() > 2 and torch.arange(4).sum() == 6:
            return x * float(torch.tensor([1.5, 2.5]).max())
        return x

    check(asks_constants, numbers(3, grad=True))


def test_custom_operator_of_torch_library() -> None:
    @torch.library.custom_op("switchgear_test_capture::triple", mutates_args=())
    def triple(x: T) -> T:
        return x * 3

    triple.register_fake(lambda x: torch.empty_like(x))
    triple.register_autograd(lambda ctx, grad: grad * 3)

    def called(x: T) -> T:
        return triple(x) * x  # type: ignore[no-any-return]

    check(called, numbers(3, grad=True))


def test_autocast_inside_and_outside() -> None:
    def inside(x: T, w: T) -> T:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.linear(x, w) + x.sum()

    x, w = numbers(2, 3, grad=True, dtype=torch.float32), numbers(3, 3, grad=True, dtype=torch.float32)
    check(inside, x, w)
    with torch.autocast("cpu", torch.bfloat16):
        check(composites, x[:, :2].detach().clone().repeat(2, 1)[:3], w[:, :2].detach().clone())


def test_functions_bound_by_pybind_are_known_by_their_module() -> None:
    function: Any = torch._C._are_functorch_transforms_active
    assert type(function.__self__).__module__ == "pybind11_builtins"
    assert what_it_does(function) == ""


def test_a_library_whose_name_begins_like_pytorchs_is_the_users_code() -> None:
    folder = str(pathlib.Path(torch.__file__).parent)
    assert [is_own_file(f"{folder}{rest}") for rest in ("/nn/functional.py", "_geometric/utils.py")] == [True, False]
