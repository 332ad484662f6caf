"""`sg.grad`, `sg.value_and_grad` and `sg.vjp`, to third order, against PyTorch's autograd."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional

import switchgear as sg
from switchgear import errors
from tests.core.against_eager import numbers
from tests.databases.verdict import global_state

T = torch.Tensor
Function = Callable[..., Any]
TORCH: dict[str, Any] = {"executors": ["torch"]}


def polynomial(x: T) -> T:
    return (x**4 + 2 * x**3).sum()


def smooth(x: T) -> T:
    return (torch.tanh(x) * torch.exp(x / 2) + torch.sin(x) * x).sum()


def normalised(x: T) -> T:
    return (functional.layer_norm(x, (3,)) * torch.arange(3, dtype=x.dtype)).square().sum()


def matrix(x: T) -> T:
    square = x.reshape(1, 3) * x.reshape(3, 1)
    return torch.linalg.det(square + torch.eye(3, dtype=x.dtype)) + torch.softmax(x, 0)[1]  # type: ignore[no-any-return]


def indexed(x: T) -> T:
    y = x * 1
    y[0] = x[1] * x[2]
    return (y.cumsum(0) ** 3).sum()


def conditional(x: T) -> T:
    return torch.where(x > 0, x**3, x**2).sum()


def in_place(x: T) -> T:
    y = x.sin()
    y.mul_(x).add_(1)
    return (y * y * y).sum()


FUNCTIONS = [polynomial, smooth, normalised, indexed, conditional, in_place]


def torch_grad(function: Function, order: int) -> Function:
    """The gradient of the sum of the gradient …, by PyTorch's autograd."""

    def derivative(x: T) -> T:
        x = x.detach().requires_grad_()
        result = function(x)
        for _ in range(order):
            (result,) = torch.autograd.grad(result.sum(), x, create_graph=True)
        return result.detach()  # type: ignore[no-any-return]

    return derivative


def nested(function: Function, order: int) -> Function:
    for _ in range(order):
        function = summed(sg.grad(function, **TORCH)) if _ < order - 1 else sg.grad(function, **TORCH)
    return function


def summed(function: Function) -> Function:
    return lambda x: function(x).sum()


def inverse_solved(x: T) -> T:
    return torch.linalg.solve(x.outer(x) + torch.eye(3, dtype=x.dtype), x).sum()  # type: ignore[no-any-return]


def group_normalised(x: T) -> T:
    image = torch.stack([x, x * x]).reshape(1, 2, 3)
    return (functional.group_norm(image, 2) ** 3).sum()


# once: PyTorch's formulas of `det`, `slogdet`, `solve`, `group_norm` and others take another form in grad mode, one
# that can be differentiated again; derived rules were recorded with it off
@pytest.mark.parametrize("function", [matrix, inverse_solved, group_normalised])
def test_second_order_of_formulas_that_ask_for_grad_mode(function: Function) -> None:
    x = numbers(3)
    torch.testing.assert_close(nested(function, 2)(x), torch_grad(function, 2)(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_nested_gradients(function: Function, order: int) -> None:
    expected, compute = torch_grad(function, order), nested(function, order)
    for x in (numbers(3), numbers(3) * 2):
        found = compute(x)
        torch.testing.assert_close(found, expected(x), rtol=1e-12, atol=1e-12)
        assert not found.requires_grad


@pytest.mark.parametrize("function", FUNCTIONS)
def test_first_order_is_eagers_to_the_bit(function: Function) -> None:
    x = numbers(3)
    value, gradient = sg.value_and_grad(function, **TORCH)(x)
    assert torch.equal(gradient, torch_grad(function, 1)(x))
    assert torch.equal(value, function(x))
    assert torch.equal(sg.grad(function, **TORCH)(x), gradient)


# --- argnums, structure, has_aux ---


def three(x: T, w: T, c: T) -> T:
    return (x.sin() * w.exp() + x * c).sum()


@pytest.mark.parametrize("argnums", [0, 1, 2, (0,), (0, 1), (2, 0), [1, 2], (0, 1, 2)])
def test_argnums(argnums: Any) -> None:
    arguments = [numbers(3), numbers(3) * 2, numbers(3) + 1]
    leaves = [argument.clone().requires_grad_() for argument in arguments]
    everything = torch.autograd.grad(three(*leaves), leaves)
    found = sg.grad(three, argnums=argnums, **TORCH)(*arguments)
    if isinstance(argnums, int):
        assert torch.equal(found, everything[argnums])
    else:
        assert isinstance(found, tuple)
        assert all(torch.equal(f, everything[n]) for f, n in zip(found, argnums, strict=True))


@dataclass
class Pair:
    """An argument that PyTorch's pytrees take for a leaf."""

    first: T
    second: T


def test_dataclass_among_the_arguments() -> None:
    def product(pair: Pair, z: T) -> T:
        return (pair.first * pair.second * z).sum()

    x, y, z = numbers(3), numbers(3) * 2, numbers(3) + 1
    # once: its tensors were counted as one, so the gradient of what comes after it was zeros
    pair, last = sg.grad(product, argnums=(0, 1), **TORCH)(Pair(x, y), z)
    assert torch.equal(last, x * y)
    assert torch.equal(pair.first, y * z)
    value, pullback = sg.vjp(lambda pair: Pair(pair.first * pair.second, z), Pair(x, y), **TORCH)
    (found,) = pullback(Pair(x, None))  # type: ignore[arg-type]
    assert torch.equal(value.first, x * y)
    assert torch.equal(found.second, x * x)


@pytest.mark.parametrize("argnums", [-1, (-1, 0)])
def test_negative_argnums_count_from_the_end(argnums: Any) -> None:
    arguments = [numbers(3), numbers(3) * 2, numbers(3) + 1]
    found = sg.grad(three, argnums=argnums, **TORCH)(*arguments)
    # once: the gradient is zeros: no argument is at position -1, so none is differentiable, yet it is returned
    last = sg.grad(three, argnums=2, **TORCH)(*arguments)
    assert torch.equal(found if isinstance(argnums, int) else found[0], last)


@pytest.mark.parametrize("argnums", [3, (0, 5)])
def test_argnums_out_of_range_is_a_clear_error(argnums: Any) -> None:
    # once: IndexError, "tuple index out of range", from the inside
    with pytest.raises((ValueError, errors.InvalidInput), match="argnums"):
        sg.grad(three, argnums=argnums, **TORCH)(numbers(3), numbers(3), numbers(3))


def test_gradient_is_structured_as_its_argument() -> None:
    def loss(parameters: dict[str, Any], x: T) -> T:
        return ((x * parameters["w"] + parameters["layers"][0]) ** 2).sum()  # type: ignore[no-any-return]

    parameters: dict[str, Any] = {"w": numbers(3), "layers": [numbers(3) * 2, numbers(2)], "flag": 3}
    found = sg.grad(loss, **TORCH)(parameters, numbers(3))
    leaves = [parameters["w"].clone().requires_grad_(), parameters["layers"][0].clone().requires_grad_()]
    w, b = torch.autograd.grad(((numbers(3) * leaves[0] + leaves[1]) ** 2).sum(), leaves)
    assert list(found) == ["w", "layers", "flag"]
    assert torch.equal(found["w"], w)
    assert torch.equal(found["layers"][0], b)
    assert torch.equal(found["layers"][1], torch.zeros(2, dtype=torch.float64))
    assert found["flag"] is None


def test_has_aux() -> None:
    def loss(x: T, w: T) -> tuple[T, dict[str, Any]]:
        y = x * w
        return (y**2).sum(), {"y": y, "note": "aux", "twice": [x * 2]}

    x, w = numbers(3), numbers(3) * 2
    gradient, aux = sg.grad(loss, has_aux=True, **TORCH)(x, w)
    assert torch.equal(gradient, 2 * (x * w) * w)
    assert torch.equal(aux["y"], x * w)
    assert aux["note"] == "aux"
    assert not aux["y"].requires_grad
    (value, aux), gradients = sg.value_and_grad(loss, argnums=(0, 1), has_aux=True, **TORCH)(x, w)
    assert torch.equal(value, ((x * w) ** 2).sum())
    assert torch.equal(aux["twice"][0], x * 2)
    assert torch.equal(gradients[1], 2 * (x * w) * x)


def test_aux_takes_no_part_in_the_gradient() -> None:
    def loss(x: T) -> tuple[T, T]:
        return (x**2).sum(), (x**3).sum()

    assert torch.equal(sg.grad(loss, has_aux=True, **TORCH)(numbers(3))[0], 2 * numbers(3))


def test_keywords_and_python_arguments() -> None:
    def loss(x: T, power: int, *, scale: float = 1.0, shift: T | None = None) -> T:
        return ((x**power) * scale + (0 if shift is None else shift)).sum()

    x = numbers(3)
    assert torch.equal(sg.grad(loss, **TORCH)(x, 2, scale=3.0), torch_grad(lambda v: loss(v, 2, scale=3.0), 1)(x))
    assert torch.equal(sg.grad(loss, **TORCH)(x, 3, shift=x + 1), torch_grad(lambda v: loss(v, 3, shift=x + 1), 1)(x))


def test_independent_argument_gets_zeros() -> None:
    gradients = sg.grad(lambda x, w: (x * 2).sum(), argnums=(0, 1), **TORCH)(numbers(3), numbers(2))
    assert torch.equal(gradients[0], torch.full((3,), 2.0, dtype=torch.float64))
    assert torch.equal(gradients[1], torch.zeros(2, dtype=torch.float64))


def test_value_that_depends_on_nothing() -> None:
    value, gradient = sg.value_and_grad(lambda x: torch.tensor(3.0), **TORCH)(numbers(3))
    assert value.item() == 3.0
    assert torch.equal(gradient, torch.zeros(3, dtype=torch.float64))


def test_argument_returned_as_it_is() -> None:
    value, gradient = sg.value_and_grad(lambda x: x, **TORCH)(torch.tensor(2.0))
    assert (value.item(), gradient.item()) == (2.0, 1.0)


def test_same_argument_twice() -> None:
    x = numbers(3)
    found = sg.grad(lambda a, b: (a * b * b).sum(), argnums=(0, 1), **TORCH)(x, x)
    # once: each argument has a gradient of its own, as in torch.func and JAX; here both are given the sum
    assert torch.equal(found[0], x * x)
    assert torch.equal(found[1], x * x + x * x)


def test_detach_and_no_grad_cut() -> None:
    def loss(x: T) -> T:
        with torch.no_grad():
            scale = x * 3
        return (x * scale + x.detach() * x).sum()

    assert torch.equal(sg.grad(loss, **TORCH)(numbers(3)), torch_grad(loss, 1)(numbers(3)))


def test_closed_over_tensors_are_constants() -> None:
    held = numbers(3, grad=True)
    gradient = sg.grad(lambda x: (x * held * x).sum(), **TORCH)(numbers(3))
    torch.testing.assert_close(gradient, 2 * numbers(3) * held.detach())
    assert held.grad is None


def test_under_no_grad_it_still_differentiates() -> None:
    with torch.no_grad():
        found = sg.grad(polynomial, **TORCH)(numbers(3))
    assert torch.equal(found, torch_grad(polynomial, 1)(numbers(3)))


def test_random_numbers_are_drawn_once() -> None:
    def noisy(x: T) -> T:
        return (functional.dropout(x, 0.5) * torch.rand(6, dtype=x.dtype)).sum()

    torch.manual_seed(5)
    x = numbers(6, grad=True)
    (expected,) = torch.autograd.grad(noisy(x), x)
    state = torch.get_rng_state()
    torch.manual_seed(5)
    assert torch.equal(sg.grad(noisy, **TORCH)(numbers(6)), expected)
    assert torch.equal(torch.get_rng_state(), state)


def test_complex_argument() -> None:
    def loss(z: T) -> T:
        return (z * z.conj()).real.sum() + z.imag.sum()

    z = torch.complex(numbers(3), numbers(3) * 2)
    leaf = z.clone().requires_grad_()
    assert torch.equal(sg.grad(loss, **TORCH)(z), torch.autograd.grad(loss(leaf), leaf)[0])


def test_mixed_orders_and_cross_derivatives() -> None:
    def f(x: T, y: T) -> T:
        return (x**3 * y**2).sum()

    inner = sg.grad(f, argnums=0, **TORCH)
    crossed = sg.grad(lambda x, y: inner(x, y).sum(), argnums=1, **TORCH)
    x, y = numbers(3), numbers(3) * 2
    torch.testing.assert_close(crossed(x, y), 3 * x**2 * 2 * y, rtol=1e-12, atol=1e-12)


def test_gradient_inside_a_jitted_function() -> None:
    def updated(x: T, w: T) -> Any:
        return w - 0.1 * sg.grad(lambda v: ((v * x) ** 2).sum(), **TORCH)(w)

    x, w = numbers(3), numbers(3) * 2
    train = sg.jit(updated, executors=["torch"])
    for _ in range(2):
        torch.testing.assert_close(train(x, w), w - 0.1 * 2 * w * x * x, rtol=1e-12, atol=1e-12)


def test_jitted_function_inside_a_gradient() -> None:
    jitted = sg.jit(polynomial, executors=["torch"])
    assert torch.equal(sg.grad(jitted, **TORCH)(numbers(3)), torch_grad(polynomial, 1)(numbers(3)))


def test_gradient_then_backward_through_it() -> None:
    x = numbers(3, grad=True)
    sg.grad(polynomial, **TORCH)(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch_grad(polynomial, 2)(numbers(3)), rtol=1e-12, atol=1e-12)


# --- vjp ---


def test_vjp_of_one_output() -> None:
    x, w = numbers(3), numbers(3) * 2

    def product(x: T, w: T) -> T:
        return x.sin() * w

    value, pullback = sg.vjp(product, x, w, **TORCH)
    assert torch.equal(value, product(x, w))
    assert not value.requires_grad
    leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
    for cotangent in (numbers(3), numbers(3) * 5):
        found = pullback(cotangent)
        assert isinstance(found, tuple)
        expected = torch.autograd.grad(product(*leaves), leaves, cotangent)
        assert all(map(torch.equal, found, expected))


def test_vjp_of_structured_outputs_and_inputs() -> None:
    def f(p: dict[str, T], x: T) -> dict[str, Any]:
        return {"a": p["w"] * x, "b": [p["w"].sum(), x.exp()], "n": 3}

    p, x = {"w": numbers(3)}, numbers(3) * 2
    value, pullback = sg.vjp(f, p, x, **TORCH)
    assert value["n"] == 3
    cotangents: dict[str, Any] = {
        "a": numbers(3),
        "b": [torch.tensor(2.0, dtype=torch.float64), numbers(3) + 1],
        "n": None,
    }
    found = pullback(cotangents)
    w, v = numbers(3, grad=True), (numbers(3) * 2).requires_grad_()
    result = f({"w": w}, v)
    expected = torch.autograd.grad(
        [result["a"], *result["b"]],
        [w, v],
        [cotangents["a"], *cotangents["b"]],
    )
    assert torch.equal(found[0]["w"], expected[0])
    assert torch.equal(found[1], expected[1])


def test_vjp_inside_grad_and_jit() -> None:
    def loss(x: T) -> T:
        value, pullback = sg.vjp(lambda v: v.sin() * v, x, **TORCH)
        return (pullback(value)[0] ** 2).sum()  # type: ignore[no-any-return]

    def eager(x: T) -> T:
        value = x.sin() * x
        return ((value * (x.cos() * x + x.sin())) ** 2).sum()

    x = numbers(3)
    torch.testing.assert_close(sg.jit(loss, executors=["torch"])(x), eager(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sg.grad(loss, **TORCH)(x), torch_grad(eager, 1)(x), rtol=1e-12, atol=1e-12)


def test_vjp_of_integers_gives_none() -> None:
    _, pullback = sg.vjp(lambda x, n: x * n, numbers(3), torch.arange(3), **TORCH)
    found = pullback(numbers(3))
    assert torch.equal(found[0], numbers(3) * torch.arange(3))
    assert found[1] is None


def test_vjp_cotangents_of_another_structure() -> None:
    _, pullback = sg.vjp(lambda x: (x * 2, x * 3), numbers(3), **TORCH)
    with pytest.raises((ValueError, errors.InvalidInput), match=r"cotangent|shorter|structure"):
        pullback(numbers(3))


def test_vjp_of_outputs_without_gradient() -> None:
    _, pullback = sg.vjp(lambda x: torch.ones(3), numbers(3), **TORCH)
    assert torch.equal(pullback(torch.ones(3))[0], torch.zeros(3, dtype=torch.float64))


# --- refused ---


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (lambda x: x * 2, r"shape \[3\]"),
        (lambda x: x.sum().long(), "int64"),
        (lambda x: (x.sum(), 1), "tuple"),
        (lambda x: 3.0, "float"),
        (lambda x: None, "NoneType"),
        (lambda x: x.sum() * 1j, "complex"),
    ],
    ids=["vector", "integer", "tuple", "number", "None", "complex"],
)
def test_value_that_is_no_scalar_is_refused(function: Function, shown: str) -> None:
    before = global_state()
    with pytest.raises(errors.InvalidInput, match=rf"sg\.grad needs.*scalar tensor.*{shown}"):
        sg.grad(function, **TORCH)(numbers(3))
    assert global_state() == before


def test_gradient_of_an_integer_argument() -> None:
    # once: returns None without a word; torch.func.grad and JAX refuse
    with pytest.raises((errors.InvalidInput, TypeError, RuntimeError), match=r"int|floating"):
        sg.grad(lambda n: (n * 2.0).sum(), **TORCH)(torch.arange(3))


def test_unknown_option_names_the_known_ones() -> None:
    for make in (sg.grad, sg.value_and_grad):
        with pytest.raises(TypeError, match="executor"):
            make(polynomial, executor=["torch"])
    with pytest.raises(errors.UnknownExecutor, match="torhc"):
        sg.grad(polynomial, executors=["torhc"])


def test_rule_of_the_call_is_used_at_every_order() -> None:
    table = sg.Table("mine")

    @table.grad_rule(torch.sin)
    def wrong_on_purpose(x: T) -> Any:
        return torch.sin(x), lambda grad: grad * torch.cos(x) * 10

    def f(x: T) -> T:
        return torch.sin(x).sum()

    first = sg.grad(f, grad_rules=table, **TORCH)
    torch.testing.assert_close(first(numbers(3)), numbers(3).cos() * 10)
    second = sg.grad(lambda x: sg.grad(f, grad_rules=table, **TORCH)(x).sum(), grad_rules=table, **TORCH)
    torch.testing.assert_close(second(numbers(3)), -numbers(3).sin() * 10)


def test_function_keeps_its_name() -> None:
    assert sg.grad(polynomial, **TORCH).__name__ == "polynomial"


def test_users_exception_passes() -> None:
    def fails(x: T) -> T:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        sg.grad(fails, **TORCH)(numbers(3))


def test_module_inside_a_gradient() -> None:
    layer = torch.nn.Linear(3, 1).double()
    x = numbers(2, 3)
    found = sg.grad(lambda v: layer(v).square().sum(), **TORCH)(x)
    assert torch.equal(found, torch_grad(lambda v: layer(v).square().sum(), 1)(x))
    assert layer.weight.grad is None


def test_functional_call_gives_gradients_of_parameters() -> None:
    layer = torch.nn.Linear(3, 1).double()
    x = numbers(2, 3)

    def loss(parameters: dict[str, T], x: T) -> T:
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()  # type: ignore[no-any-return]

    expected = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    found = sg.grad(loss, **TORCH)({name: value.detach() for name, value in layer.named_parameters()}, x)
    assert all(map(torch.equal, found.values(), expected))


LIMITS = {"cpu": 4}


class Curious(sg.Executor):
    """All that it answers reads a variable, prints, asks the clock and computes."""

    def _look(self) -> None:
        print("looked", time.time())
        assert LIMITS["cpu"] > torch.ones(2).sum().item()

    def unavailable(self) -> str | None:
        self._look()
        return None

    def is_constant_for_vjp(self, bound_symbol: sg.BoundSymbol) -> bool | None:
        self._look()
        return None

    def claim(self, bound_symbol: sg.BoundSymbol, entry: Any) -> sg.executors.Implementation | sg.Declined:
        self._look()
        return super().claim(bound_symbol, entry)


def test_code_of_executors_is_no_part_of_a_capture() -> None:
    options: dict[str, Any] = {"executors": [Curious("curious"), "torch"], "fallback": "error"}

    def outer(x: T) -> T:
        inner: T = sg.grad(polynomial, **options)(x)
        return inner.square().sum()

    x = torch.tensor([0.3, 1.7])
    expected = torch.func.grad(lambda x: torch.func.grad(polynomial)(x).square().sum())(x)
    torch.testing.assert_close(sg.grad(outer, **options)(x), expected)


def test_the_value_of_vjp_is_constant_to_autograd() -> None:
    x = torch.ones(3, requires_grad=True)
    value, pull = sg.vjp(torch.sin, x, executors=["torch"])
    assert not value.requires_grad
    assert not pull(torch.ones(3))[0].requires_grad
