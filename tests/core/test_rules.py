"""Grad rules: the three forms, what is refused, and derivatives of derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from switchgear.errors import RuleError, SwitchgearError
from tests.core.training import backward, choice, executor, forward, leaf, line_of, lines, operators, rules
from tests.oracle import assert_same, assert_trains_as_eager, step

Declare = Callable[[sg.Table], None]


def pullback_form(table: sg.Table) -> None:
    @table.grad_rule(torch.tanh)
    def rule(x: Tensor) -> Any:
        y = torch.tanh(x)
        return y, lambda grad: grad * (1 - y * y)


def transform_form(table: sg.Table) -> None:
    @table.grad_transform(torch.tanh)
    def rule(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        sg.put_grad(x, sg.get_grad(y) * (1 - y * y))
        return y


def augmented_form(table: sg.Table) -> None:
    def ahead(x: Tensor) -> Any:
        y = torch.tanh(x)
        return y, (y,)

    def back(y: Tensor, grad: Tensor) -> Tensor:
        return grad * (1 - y * y)

    table.augmented(torch.tanh, forward=ahead, backward=back)


FORMS = {"pullback": pullback_form, "transform": transform_form, "augmented": augmented_form}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def declared(declare: Declare, owner: str = "mine") -> sg.Table:
    table = sg.Table(owner)
    declare(table)
    return table


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._len_torch_function_stack() == 0
    assert torch.is_grad_enabled()
    assert not torch.compiler.is_compiling()


def tanh(x: Tensor) -> Tensor:
    return torch.tanh(x * 2).sum()


# The forms.


def test_each_form_is_right(form: str) -> None:
    jitted = sg.jit(tanh, executors=["torch"], grad_rules=declared(FORMS[form]))
    x = leaf(3, 4, dtype=torch.float64)
    torch.testing.assert_close(step(jitted, x), step(tanh, x))
    found = choice(jitted, "gradient", "torch.tanh")
    assert (found.owner, found.reason) == ("mine", f"{form} rule")
    made = [item for item in lines(backward(jitted)) for link in item.links if str(link.rule) == f"mine ({form})"]
    assert any("mul" in item.symbol.name for item in made)
    assert "aten.tanh_backward.default" not in operators(backward(jitted))
    assert operators(forward(jitted)).count("aten.tanh.default") == 1


def test_each_form_of_an_executor(form: str) -> None:
    mine = sg.Executor("mine", table=declared(FORMS[form]))
    jitted = sg.jit(tanh, executors=[mine, "torch"])
    x = leaf(3)
    torch.testing.assert_close(step(jitted, x), step(tanh, x))
    assert choice(jitted, "gradient", "torch.tanh").owner == "mine"


def test_derivatives_of_any_order(form: str) -> None:
    table = declared(FORMS[form])
    options: dict[str, Any] = {"executors": ["torch"], "grad_rules": table}

    def function(x: Tensor) -> Tensor:
        return torch.tanh(x.sin())

    got, wanted, x = function, function, torch.tensor(0.7, dtype=torch.float64)
    for _ in range(3):
        got, wanted = sg.grad(got, **options), torch.func.grad(wanted)
        torch.testing.assert_close(got(x), wanted(x))


@pytest.mark.parametrize("form", FORMS)
def test_what_a_rule_computes_is_what_is_differentiated(form: str) -> None:
    """The rule says that the derivative of the sine is twice the cosine, so its second is minus twice the sine."""

    def pullback(x: Tensor) -> Any:
        return torch.sin(x), lambda grad: grad * 2 * torch.cos(x)

    def transform(x: Tensor) -> Tensor:
        y = torch.sin(x)
        sg.put_grad(x, sg.get_grad(y) * 2 * torch.cos(x))
        return y

    def back(x: Tensor, grad: Tensor) -> Tensor:
        return grad * 2 * torch.cos(x)

    table = sg.Table("mine")
    if form == "pullback":
        table.grad_rule(torch.sin)(pullback)
    elif form == "transform":
        table.grad_transform(torch.sin)(transform)
    else:
        table.augmented(torch.sin, forward=lambda x: (torch.sin(x), (x,)), backward=back)
    options: dict[str, Any] = {"executors": ["torch"], "grad_rules": table}
    x = torch.tensor(0.7, dtype=torch.float64)
    first = sg.grad(torch.sin, **options)
    torch.testing.assert_close(first(x), 2 * torch.cos(x))
    torch.testing.assert_close(sg.grad(first, **options)(x), -2 * torch.sin(x))


def test_second_order_through_rules_with_several_arguments() -> None:
    def product(x: Tensor, y: Tensor) -> Any:
        return torch.mul(x, y), lambda grad: (grad * y, grad * x)

    options: dict[str, Any] = {"executors": ["torch"], "grad_rules": rules(torch.mul, product)}

    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.mul(torch.mul(x, y), x)

    x, y = torch.tensor(3.0), torch.tensor(5.0)
    for first in (0, 1):
        for second in (0, 1):
            got = sg.grad(sg.grad(function, first, **options), second, **options)(x, y)
            assert_same(got, torch.func.grad(torch.func.grad(function, first), second)(x, y))


def test_rule_works_in_place_on_what_is_its_own() -> None:
    def rule(x: Tensor) -> Any:
        y = x.clone()
        y.sin_()

        def pull(grad: Tensor) -> Tensor:
            grad = grad.clone()
            grad[0] = 0
            grad.mul_(torch.cos(x))
            return grad

        return y, pull

    x = leaf(3)
    jitted = sg.jit(torch.sin, executors=["torch"], grad_rules=rules(torch.sin, rule))
    jitted(x).sum().backward()
    wanted = torch.cos(x.detach())
    wanted[0] = 0
    assert_same(x.grad, wanted)


def test_rule_sees_the_arguments_as_they_were_given() -> None:
    seen: list[Any] = []

    def rule(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append((type(x), x.shape, torch.is_grad_enabled(), args, kwargs))
        return F.softmax(x, *args, **kwargs), lambda grad: grad

    jitted = sg.jit(lambda x: F.softmax(x, dim=-1), executors=["torch"], grad_rules=rules(F.softmax, rule))
    jitted(leaf(2, 3)).sum().backward()
    # once more for the layout of the gradient that came
    found = seen[0]
    assert issubclass(found[0], Tensor)
    assert found[1:3] == ((2, 3), True)
    assert -1 in (*found[3], *found[4].values())


def test_gradients_are_per_tensor_in_lists_and_keywords() -> None:
    def cat(tensors: list[Tensor], dim: int = 0) -> Any:
        sizes = [tensor.shape[dim] for tensor in tensors]
        return torch.cat(tensors, dim), lambda grad: grad.split(sizes, dim)

    def where(condition: Tensor, x: Tensor, *, y: Tensor) -> Any:
        return torch.ops.aten.where(condition, x, y), lambda g: (None, g * condition, g * ~condition)

    inputs = leaf(2, 3), leaf(4, 3)
    assert_trains_as_eager(lambda x, y: torch.cat([x, y, x]).exp(), *inputs, grad_rules=rules(torch.cat, cat))
    table = rules(torch.where, lambda condition, x, y: where(condition, x, y=y))
    assert_trains_as_eager(lambda x, y: torch.where(x > 0, x, y[:2]), *inputs, grad_rules=table)


def test_integer_argument_gets_none() -> None:
    def embedding(index: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
        return weight[index], lambda g: (None, torch.zeros_like(weight).index_add(0, index, g))

    table = rules(F.embedding, embedding)
    assert_trains_as_eager(lambda i, w: F.embedding(i, w), torch.tensor([2, 0, 2]), leaf(4, 3), grad_rules=table)


def test_unused_output_is_zeros_and_an_integer_one_none() -> None:
    seen: list[Any] = []

    def topk(x: Tensor, k: int) -> Any:
        values, indices = torch.topk(x, k)

        def pull(*grads: Tensor | None) -> Tensor:
            seen.append([None if grad is None else tuple(grad.shape) for grad in grads])
            assert grads[0] is not None
            return torch.zeros_like(x).scatter(0, indices, grads[0])

        return (values, indices), pull

    assert_trains_as_eager(lambda x: torch.topk(x, 2)[0] * 3, leaf(5), grad_rules=rules(torch.topk, topk))
    assert seen
    assert all(shapes == [(2,), None] for shapes in seen)
    seen.clear()

    def parts(x: Tensor) -> Any:
        def pull(*grads: Tensor | None) -> Tensor:
            seen.append([None if grad is None else tuple(grad.shape) for grad in grads])
            return torch.stack([grad for grad in grads if grad is not None])

        return torch.unbind(x), pull

    assert_trains_as_eager(lambda x: torch.unbind(x)[1] * 3, leaf(2, 4), grad_rules=rules(torch.unbind, parts))
    assert all(shapes == [(4,), (4,)] for shapes in seen)


def test_gradient_for_what_does_not_require_grad_is_dropped() -> None:
    def product(x: Tensor, y: Tensor) -> Any:
        return torch.mul(x, y), lambda grad: (grad * y, (grad * x).exp())

    jitted = assert_trains_as_eager(torch.mul, leaf(3), torch.randn(3), grad_rules=rules(torch.mul, product))
    assert operators(backward(jitted)) == ["torch.mul"]


def test_one_gradient_for_two_arguments_and_the_grad_output_itself() -> None:
    table = rules(torch.add, lambda x, y: (torch.add(x, y), lambda grad: (grad, grad)))
    assert_trains_as_eager(lambda x, y: x + y + x, leaf(3), leaf(3), grad_rules=table)


def test_rule_that_returns_its_argument_as_output() -> None:
    """A gradient reversal of a view: other uses of the argument are not reversed with it."""

    class Reversed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return -2 * grads[0]

    def eager(x: Tensor) -> Tensor:
        y: Tensor = Reversed.apply(x)  # type: ignore[no-untyped-call]
        return y + x * 3

    x = leaf(3)
    # once: output and argument go by one name, so gradients of the argument from later uses are pulled back, too
    table = rules(torch.Tensor.view, lambda x, *shape: (x, lambda grad: grad * -2))
    jitted = sg.jit(lambda x: x.view(3) + x * 3, executors=["torch"], grad_rules=table)
    assert_same(step(jitted, x), step(eager, x))
    inner = sg.jit(lambda x: x.sin().view(3).exp(), executors=["torch"], grad_rules=table)
    torch.testing.assert_close(step(inner, x)[1], [-2 * x.detach().sin().exp() * x.detach().cos()])


def test_rule_that_returns_one_tensor_as_two_outputs() -> None:
    def unbind(x: Tensor) -> Any:
        y = x.sum(0)
        return (y, y), lambda a, b: torch.stack([a * 10, b * 100])

    x = leaf(2, 3)
    # once: both outputs go by one name, so the gradient of the second goes to the first
    jitted = sg.jit(
        lambda x: torch.unbind(x)[0] * torch.unbind(x)[1], executors=["torch"], grad_rules=rules(torch.unbind, unbind)
    )
    y = x.detach().sum(0)
    torch.testing.assert_close(step(jitted, x)[1], [torch.stack([y * 10, y * 100])])


def test_residuals_that_are_no_tensors() -> None:
    class Residual:
        factor = 7.0

    table = sg.Table("mine")
    table.augmented(
        torch.sin, forward=lambda x: (torch.sin(x), Residual()), backward=lambda residual, grad: grad * residual.factor
    )
    x = leaf(3)
    sg.jit(torch.sin, executors=["torch"], grad_rules=table)(x).sum().backward()
    assert_same(x.grad, torch.full((3,), 7.0))


def test_random_numbers_of_the_forward_are_drawn_once() -> None:
    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        mask = torch.rand_like(x) > p
        return x * mask / (1 - p), lambda grad: grad * mask / (1 - p)

    x = leaf(64)
    jitted = sg.jit(lambda x: F.dropout(x, 0.5), executors=["torch"], grad_rules=rules(F.dropout, dropout))
    torch.manual_seed(5)
    y = jitted(x)
    y.sum().backward()
    after = torch.rand(3)
    assert_same(x.grad, torch.where(y != 0, 2.0, 0.0))
    torch.manual_seed(5)
    mask = torch.rand(64) > 0.5
    assert_same(y.detach(), (x * mask / 0.5).detach())
    assert_same(after, torch.rand(3))


# once: partition puts every operator that draws into the forward, with what it needs: grad outputs, too
@pytest.mark.parametrize("draw", [lambda g: g * torch.rand_like(g), lambda g: g * torch.rand(g.shape)])
def test_random_numbers_of_the_backward_are_drawn_there(draw: Any) -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.sin(x)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return draw(grads[0])  # type: ignore[no-any-return]

    table = rules(torch.sin, lambda x: (torch.sin(x), draw))
    results = []
    for function in (sg.jit(torch.sin, executors=["torch"], grad_rules=table), Noisy.apply):
        x = torch.ones(4, requires_grad=True)
        torch.manual_seed(1)
        y = function(x)
        between = torch.rand(2)
        y.backward(torch.ones(4))
        results.append((between, x.grad, torch.rand(2)))
    assert_same(*results)


def test_rule_closes_over_a_tensor() -> None:
    # once: the recorder of the grad pass adopts nothing
    factor = torch.tensor([1.0, 2.0, 3.0])
    table = rules(torch.sin, lambda x: (torch.sin(x), lambda grad: grad * factor))
    x = leaf(3)
    sg.jit(torch.sin, executors=["torch"], grad_rules=table)(x).sum().backward()
    assert_same(x.grad, factor)


def test_rule_for_a_composite_in_a_module() -> None:
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        def pull(grad: Tensor) -> tuple[Tensor, ...]:
            flat, rows = grad.flatten(0, -2), x.flatten(0, -2)
            found = (grad @ weight, flat.t() @ rows)
            return found if bias is None else (*found, flat.sum(0))

        return F.linear(x, weight, bias), pull

    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))
    x = torch.randn(5, 3)
    jitted = sg.jit(model, executors=["torch"], grad_rules=rules(F.linear, linear))
    grads = []
    for call in (jitted, model):
        model.zero_grad()
        call(x).square().sum().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*grads)


# Grad transforms alone.


def transformed(rule: Callable[..., Any], x: Tensor) -> Tensor:
    table = sg.Table("mine")
    table.grad_transform(torch.sin)(rule)
    result: Tensor = sg.jit(sine, executors=["torch"], grad_rules=table)(x)
    return result


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)  # the user's line


def test_gradients_put_twice_add_up_and_one_asked_twice_is_one() -> None:
    def rule(x: Tensor) -> Tensor:
        y = torch.sin(x)
        sg.put_grad(x, sg.get_grad(y) * 2)
        sg.put_grad(x, sg.get_grad(y) * 3)
        return y

    x = leaf(3)
    transformed(rule, x).backward(torch.ones(3))
    assert_same(x.grad, torch.full((3,), 5.0))


def test_none_put_is_no_gradient() -> None:
    def rule(x: Tensor) -> Tensor:
        sg.put_grad(x, None)
        return torch.sin(x)

    x = leaf(3)
    y = transformed(rule, x)
    y.backward(torch.ones(3))
    assert x.grad is None


def test_transform_of_several_outputs() -> None:
    table = sg.Table("mine")

    @table.grad_transform(torch.unbind)
    def rule(x: Tensor) -> Any:
        parts = torch.unbind(x)
        sg.put_grad(x, torch.stack([sg.get_grad(part) for part in parts]))
        return parts

    assert_trains_as_eager(lambda x: torch.unbind(x)[0] * 2, leaf(2, 3), grad_rules=table)
    assert_trains_as_eager(lambda x: torch.unbind(x)[0] * torch.unbind(x)[1], leaf(2, 3), grad_rules=table)


@pytest.mark.parametrize("call", [lambda: sg.get_grad(torch.ones(1)), lambda: sg.put_grad(torch.ones(1), None)])
def test_outside_of_a_transform(call: Any) -> None:
    with pytest.raises(SwitchgearError, match="called outside of a grad rule"):
        call()


# What is refused. Each message names plugin, rule, operator and the user's line.


def refused(table: sg.Table, *parts: str, function: Any = sine, line: str = "user's line", rule: bool = True) -> None:
    """Both as an executor's rule and as the call's, the error says all that it should."""
    mine = sg.Executor(table.owner, version="1.5", table=table)
    ways: tuple[dict[str, Any], ...] = {"executors": [mine, "torch"]}, {"grad_rules": table}
    for options in ways:
        with pytest.raises(RuleError) as caught:
            sg.jit(function, **options)(leaf(2, 3)).sum().backward()
        text = str(caught.value)
        for part in (*parts, "torch.sin", line_of(function, line), "made_up_rule"):
            assert part in text, f"{part} is not in: {text}"
        assert table.owner in text


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    def made_up_rule(*args: Any) -> Any:
        return function(*args)

    return made_up_rule


def bad(rule: Callable[..., Any]) -> sg.Table:
    return rules(torch.sin, named(rule), "stranger")


def bad_transform(rule: Callable[..., Any]) -> sg.Table:
    table = sg.Table("stranger")
    table.grad_transform(torch.sin)(named(rule))
    return table


def bad_pair(forward: Callable[..., Any], backward: Callable[..., Any]) -> sg.Table:
    table = sg.Table("stranger")
    table.augmented(torch.sin, forward=named(forward), backward=named(backward))
    return table


def boom(*args: Any) -> Any:
    raise KeyError("boom")


@pytest.mark.parametrize("result", [None, torch.ones(2, 3), (torch.ones(2, 3), 3), (1, 2, 3)])
def test_result_that_is_no_pair(result: Any) -> None:
    refused(bad(lambda x: result), "must return (outputs, pullback)")


def test_number_of_outputs() -> None:
    refused(bad(lambda x: ((x.sin(), x.cos()), lambda *grads: grads[0])), "returns 2 outputs, the operator has 1")
    refused(bad(lambda x: ((), lambda: None)), "returns 0 outputs, the operator has 1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[:1], "shape (1, 3), expected (2, 3)"),
        (lambda t: t.sum(), "shape (), expected (2, 3)"),
        (lambda t: t.double(), "dtype torch.float64, expected torch.float32"),
        (lambda t: t.to(torch.complex64), "dtype torch.complex64, expected torch.float32"),
        (lambda t: t.to("meta"), "device meta, expected cpu"),
    ],
)
def test_metadata_of_outputs_and_gradients(change: Any, message: str) -> None:
    refused(bad(lambda x: (change(torch.sin(x)), lambda grad: grad)), f"output 0 has {message}")
    refused(bad(lambda x: (torch.sin(x), change)), f"the gradient of tensor argument 0 has {message}")
    refused(bad_pair(lambda x: (torch.sin(x), ()), change), f"the gradient of tensor argument 0 has {message}")

    def transform(x: Tensor) -> Tensor:
        y = torch.sin(x)
        sg.put_grad(x, change(sg.get_grad(y)))
        return y

    refused(bad_transform(transform), f"the gradient of tensor argument 0 has {message}")


def test_number_of_gradients() -> None:
    refused(bad(lambda x: (torch.sin(x), lambda grad: (grad, grad))), "gives 2 gradients for 1 tensor arguments")
    refused(bad(lambda x: (torch.sin(x), lambda grad: ())), "gives 0 gradients for 1 tensor arguments")
    refused(bad_pair(lambda x: (torch.sin(x), ()), lambda grad: [grad, None]), "gives 2 gradients")


@pytest.mark.parametrize("gradient", [1.0, "grad", {}])
def test_gradient_that_is_no_tensor(gradient: Any) -> None:
    refused(bad(lambda x: (torch.sin(x), lambda grad: gradient)), f"gives a {type(gradient).__name__} as the gradient")


def test_pullback_that_does_not_take_the_gradients() -> None:
    refused(bad(lambda x: (torch.sin(x), lambda: None)), "raised TypeError")


def test_rule_that_raises() -> None:
    refused(bad(lambda x: boom()), "raised KeyError: 'boom'")
    refused(bad(lambda x: (torch.sin(x), boom)), "raised KeyError: 'boom'")
    refused(bad_transform(lambda x: boom()), "raised KeyError: 'boom'")
    refused(bad_pair(lambda x: boom(), boom), "raised KeyError: 'boom'")
    refused(bad_pair(lambda x: (torch.sin(x), ()), lambda grad: boom()), "raised KeyError: 'boom'")


def test_rule_that_does_not_take_the_arguments() -> None:
    refused(bad(lambda: None), "raised TypeError")


def test_cause_is_the_rules_own_exception() -> None:
    with pytest.raises(RuleError) as caught:
        sg.jit(sine, grad_rules=bad(lambda x: boom()))(leaf(2))
    assert isinstance(caught.value.__cause__, KeyError)


def test_residuals_missing() -> None:
    refused(bad_pair(lambda x: torch.sin(x), boom), "must return (outputs, residuals)")


def test_get_grad_on_no_output() -> None:
    def rule(x: Tensor) -> Tensor:
        sg.put_grad(x, sg.get_grad(torch.cos(x)))
        return torch.sin(x)

    refused(bad_transform(rule), "get_grad on something that it does not return")


def test_forgotten_put_grad() -> None:
    def rule(x: Tensor) -> Tensor:
        y = torch.sin(x)
        sg.get_grad(y)
        return y

    refused(bad_transform(rule), "never calls put_grad for tensor argument 0")


def test_put_grad_on_no_argument() -> None:
    def rule(x: Tensor) -> Tensor:
        y = torch.sin(x)
        sg.put_grad(y, sg.get_grad(y))
        return y

    refused(bad_transform(rule), "put_grad on something that is no tensor argument")


@pytest.mark.parametrize("wrong", [3, "y", None])
def test_get_grad_and_put_grad_of_no_tensor(wrong: Any) -> None:
    def asks(x: Tensor) -> Tensor:
        y = torch.sin(x)
        sg.put_grad(x, sg.get_grad(wrong))
        return y

    def puts(x: Tensor) -> Tensor:
        y = torch.sin(x)
        sg.put_grad(wrong, sg.get_grad(y))
        return y

    refused(bad_transform(asks))
    refused(bad_transform(puts))


@pytest.mark.parametrize("checker", [boom, lambda bound_symbol: None, lambda bound_symbol: 3, lambda: True])
def test_checker_that_raises_or_makes_no_sense(checker: Any) -> None:
    table = sg.Table("stranger")
    table.grad_rule(torch.sin, named(checker))(lambda x: (torch.sin(x), lambda grad: grad))
    refused(table, "checker of the grad rule", "Error")


def test_checker_of_an_implementation_that_raises() -> None:
    table = sg.Table("stranger")
    table.implementation(torch.sin, boom)(torch.sin)
    mine = sg.Executor("stranger", version="1.5", table=table)
    with pytest.raises(RuleError) as caught:
        sg.jit(sine, executors=[mine, "torch"])(torch.ones(3))
    for part in ("stranger 1.5", "boom (", "KeyError", "torch.sin", line_of(sine, "user's line"), "out of executors"):
        assert part in str(caught.value)


@pytest.mark.parametrize("write", [lambda x: x.mul_(2), lambda x: (x[0].zero_(), torch.sin(x))[1]])
def test_rule_that_writes_to_its_argument_is_refused(write: Any) -> None:
    refused(bad(lambda x: (write(x), lambda grad: grad)), "writes in place to an argument; write to a clone")
    refused(bad_pair(lambda x: (write(x), ()), lambda grad: grad), "writes in place to an argument")
    refused(bad_transform(write), "writes in place to an argument")


@pytest.mark.parametrize("share", [lambda x: x, lambda x: x.view(-1).view(x.shape), lambda x: x.detach()])
def test_rule_that_returns_its_argument_is_refused(share: Any) -> None:
    def transform(x: Tensor) -> Tensor:
        y: Tensor = share(x)
        sg.put_grad(x, torch.ones_like(x))
        return y

    said = "returns an argument or a view of it; return a clone"
    refused(bad(lambda x: (share(x), lambda grad: grad)), said)
    refused(bad_pair(lambda x: (share(x), ()), lambda grad: grad), said)
    refused(bad_transform(transform), said)


def test_rule_of_a_view_may_return_one() -> None:
    table = rules(torch.Tensor.reshape, lambda x, *shape: (x.view(*shape), lambda grad: grad.reshape(x.shape)))
    assert_trains_as_eager(lambda x: x.reshape(-1) * 2, leaf(2, 3), grad_rules=table)


def test_rule_that_writes_to_what_it_made() -> None:
    table = rules(torch.sin, lambda x: (x.clone().sin_(), lambda grad: grad * x.clone().cos_()))
    assert_trains_as_eager(lambda x: torch.sin(x) * 2, leaf(2, 3), grad_rules=table)


def test_rule_whose_pullback_writes_to_the_argument_is_refused() -> None:
    refused(bad(lambda x: (torch.sin(x), lambda grad: grad * x.mul_(2))), "pullback that writes in place")


def test_rule_that_reads_a_value() -> None:
    # once: DataDependent passes through _recording, so neither plugin nor rule is named
    refused(bad(lambda x: (torch.sin(x), lambda grad: grad * grad.sum().item())), "item(), or a branch")


def test_after_an_error_everything_goes_on() -> None:
    table = sg.Table("mine")
    answers: list[Callable[..., Any]] = [boom]
    table.grad_rule(torch.sin)(lambda x: answers[-1](x))
    jitted = sg.jit(sine, executors=["torch"], grad_rules=table)
    x = leaf(3)
    with pytest.raises(RuleError):
        jitted(x)
    answers.append(lambda x: (torch.sin(x), lambda grad: grad * 5))
    jitted(x).sum().backward()
    assert_same(x.grad, torch.full((3,), 5.0))


def test_operators_of_a_rule_are_run_by_executors() -> None:
    calls: list[int] = []

    def cosine(x: Tensor) -> Tensor:
        calls.append(1)
        return torch.cos(x)

    table = rules(torch.sin, lambda x: (torch.sin(x), lambda grad: grad * torch.cos(x)))
    fast = executor("fast", {torch.cos: cosine})
    jitted = sg.jit(sine, executors=[fast, "torch"], grad_rules=table)
    x = leaf(3)
    torch.testing.assert_close(step(jitted, x), step(sine, x))
    assert len(calls) == 1
    assert "torch.cos" in operators(backward(jitted))


# What a rule makes in its forward and saves.


def with_argument(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.tanh(), x * 2


LIBRARY = torch.library.Library("made_up_rules", "DEF")
LIBRARY.define("with_argument(Tensor x) -> (Tensor, Tensor)")
LIBRARY.impl("with_argument", with_argument, "CompositeImplicitAutograd")
WITH_ARGUMENT = torch.ops.made_up_rules.with_argument.default


def saving_rules() -> sg.Table:
    """`tanh` saves what a further result of an operator holds, which has a rule of its own."""
    table = sg.Table("mine")

    @table.grad_rule(torch.tanh)
    def of_tanh(x: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        y, z = WITH_ARGUMENT(x)
        return y, lambda grad: grad * (1 - (z / 2).tanh().square())

    @table.grad_rule(WITH_ARGUMENT)
    def of_pair(x: Tensor) -> tuple[tuple[Tensor, Tensor], Callable[..., Any]]:
        y, z = WITH_ARGUMENT(x)
        return (y, z), lambda grad, other: grad * (1 - (z / 2).tanh().square()) + 2 * other

    return table


def chain(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (((x * 3).tanh() * 2).tanh() * 2).tanh()
    return y.square().sum(), y


@pytest.mark.parametrize("which", [0, 1])
def test_saved_values_that_rules_make_are_found_by_another_backward(which: int) -> None:
    """The names of those of later calls must not depend on whether those of earlier ones are differentiated."""
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    jitted = sg.jit(chain, executors=["torch"], grad_rules=saving_rules())
    found, wanted = (torch.autograd.grad(function(x)[which].sum(), x) for function in (jitted, chain))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    seconds = []
    for function in (jitted, chain):
        (first,) = torch.autograd.grad(function(x)[which].sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(first.sum(), x))
    torch.testing.assert_close(seconds[0], seconds[1], rtol=1e-12, atol=1e-12)


def test_a_fault_of_a_backward_is_told_by_its_own_name_and_line() -> None:
    table = sg.Table("mine")

    def backward(x: Tensor, grad: Tensor) -> Tensor:
        return grad.no_such_thing  # type: ignore[attr-defined,no-any-return] # here

    table.augmented(torch.sin, forward=lambda x: (torch.sin(x), (x,)), backward=backward)
    line = backward.__code__.co_firstlineno
    with pytest.raises(
        RuleError,
        match=rf"^.*backward \(.*:{line}\), backward of grad rule .*no_such_thing'?.*, in test_rules.py:{line + 1}",
    ):
        sg.jit(torch.sin, executors=["torch"], grad_rules=table)(torch.ones(2, requires_grad=True)).sum().backward()
