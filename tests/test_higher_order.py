"""Derivatives of derivatives through a jitted function, to third order, beside eager's.

Values and first-order gradients are compared to the bit. From the second order on a gradient is a sum over more paths
than the first has, and PyTorch's engine adds what reaches a leaf in the order in which its nodes were made; ours come
from a trace, so a sum of three terms or more may be rounded otherwise: relative 1e-10 in float64.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from tests.core.against_eager import numbers
from tests.falling_back import assert_falls_back
from tests.oracle import Tolerance, differences
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager

Function = Callable[..., Any]
ROUNDED = Tolerance(1e-10, 1e-12, "sums of several terms in another order", strides=True)


def jit(function: Function, **options: Any) -> Function:
    jitted: Function = sg.jit(function, executors=EXECUTORS, **options)
    return jitted


def total(outputs: Any) -> Tensor:
    """A scalar of all that can be differentiated, in which each output has a weight of its own."""
    flat = [outputs] if isinstance(outputs, Tensor) else outputs
    terms = [(index + 1) * tensor.square().sum() for index, tensor in enumerate(flat) if tensor.requires_grad]
    return torch.stack(terms).sum()


def orders(function: Function, leaves: list[Tensor], highest: int, seed: int = 0) -> list[list[Any]]:
    """The outputs, then the gradients of each order; an order is the gradient of a scalar of the order before."""
    torch.manual_seed(seed)
    made = function(*leaves[: function_arity(function, leaves)])
    seen: list[list[Any]] = [[made] if isinstance(made, Tensor) else list(made)]
    current: list[Any] = seen[0]
    for _ in range(highest):
        current = list(torch.autograd.grad(total(current), leaves, create_graph=True, allow_unused=True))
        seen.append(current)
        current = [gradient for gradient in current if gradient is not None]
        if not any(gradient.requires_grad for gradient in current):
            break
    seen.append([torch.get_rng_state()])
    return seen


def function_arity(function: Function, leaves: list[Tensor]) -> int:
    """How many of the leaves are arguments; the others are parameters."""
    return 1 if isinstance(function, nn.Module) else len(leaves)


def compare(expected: list[list[Any]], found: list[list[Any]], where: str) -> None:
    assert len(found) == len(expected)
    for order, (one, other) in enumerate(zip(expected, found, strict=True)):
        exactness = ROUNDED if 1 < order < len(expected) - 1 else None
        faults = list(differences(one, other, f"{where}, order {order}", exactness))
        assert not faults, "\n".join(faults)


def check(function: Function, *make: Tensor, highest: int = 2) -> None:
    """Every order, in eager and jitted: from a fresh entry, and again from the cache."""
    jitted = jit(function)
    for seed in (0, 1):
        expected = orders(function, [leaf.detach().clone().requires_grad_() for leaf in make], highest, seed)
        found = orders(jitted, [leaf.detach().clone().requires_grad_() for leaf in make], highest, seed)
        compare(expected, found, f"call {seed}")


# --- functions and modules, create_graph=True to third order ---


def in_place(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y[1].mul_(x[0])
    y.t()[0] = w[0, 0] * x[:, 1]
    return y.sin_() * w


def in_place_on_argument(x: Tensor, w: Tensor) -> Tensor:
    x = x * 1
    jit(lambda y: y.mul_(w).exp_())(x)
    return x * w


FUNCTIONS: dict[str, Function] = {
    "pointwise": lambda x, w: torch.tanh(x * w).exp(),
    "matmul": lambda x, w: torch.sigmoid(x @ w.t()) @ x,
    "reductions": lambda x, w: x.logsumexp(0) * w.softmax(1) + x.var(1, keepdim=True),
    "norm": lambda x, w: F.normalize(x, dim=1) * w.contiguous().norm(),
    "linalg": lambda x, w: torch.linalg.solve(x @ x.t() + 3 * torch.eye(3, dtype=x.dtype), w),
    "indexing": lambda x, w: x[torch.tensor([0, 0, 2])] * w.gather(1, torch.tensor([[0, 2, 2, 1]] * 3)),
    "views": lambda x, w: x.view(2, 6).t().reshape(3, 4) * w.t().unfold(0, 2, 2).sum(),
    "views returned": lambda x, w: (y := x * w, y.t(), y.view(-1)[3:])[1:],
    "in-place": in_place,
    "detached factor": lambda x, w: x.detach() * x * w + (x * w).detach() * w,
    "no_grad region": lambda x, w: torch.no_grad()(torch.sin)(x) * w * x,
    "several outputs": lambda x, w: (x.sin() * w, w.exp(), x.argmax(), (x * x).sum()),
    "unused input": lambda x, w: x.cos() * x,
    "linear in the inputs": lambda x, w: x * 2 + w,
    "max": lambda x, w: (x * w).max(dim=1).values * x[:, 0],
    "where": lambda x, w: torch.where(x > 0, x * w, w.exp()),
    "cumulative": lambda x, w: x.cumsum(0) * w.cumsum(1).sin(),
    "attention": lambda x, w: F.scaled_dot_product_attention(*(t.view(1, 3, 4) for t in (x, w, x * w))),
    "layer norm": lambda x, w: F.layer_norm(x, (4,), w[0], w[1]),
    "cross entropy": lambda x, w: F.cross_entropy(x * w, torch.tensor([1, 3, 0])),
    "convolution": lambda x, w: F.conv1d(x.view(1, 3, 4), w.reshape(4, 3, 1)).sin(),
    "complex": lambda x, w: torch.complex(x * 0.5, w * 0.5).sin().abs(),
    "checkpointed": lambda x, w: checkpoint(lambda a, b: (a * b).sin() * a, x, w, use_reentrant=False) * w,
    "dropout": lambda x, w: F.dropout(x * w, 0.5).exp() * x,
    "dropout checkpointed": lambda x, w: checkpoint(lambda a: F.dropout(a, 0.5) * a, x * w, use_reentrant=False),
    "noise": lambda x, w: (x + torch.randn_like(x)) * (w * x).sin(),
}


THIRD = ("matmul", "in-place", "several outputs", "dropout")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    """To second order, and to third where it is in `THIRD`."""
    check(FUNCTIONS[name], numbers(3, 4), numbers(4, 3).t() + 0.5, highest=3 if name in THIRD else 2)


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (2, 3)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.SiLU()), (4, 3)),
    "convolution": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.GELU(), nn.AvgPool1d(2)), (1, 2, 5)),
    "dropout": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ELU()), (2, 3)),
    "recurrent": (lambda: nn.GRUCell(3, 2), (2, 3)),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_to_second_order(name: str) -> None:
    """With respect to the input and all parameters; buffers are written once, and not by the backwards."""
    make, shape = MODULES[name]
    module = make().double()
    eager, ours = copy.deepcopy(module), copy.deepcopy(module)
    jitted = jit(ours)
    for call in range(2):
        seen = []
        for target, owner in ((eager, eager), (jitted, ours)):
            x = (numbers(*shape) + call).requires_grad_()
            seen.append(orders(target, [x, *owner.parameters()], 2, call))
            seen[-1].insert(0, list(owner.buffers()))
        assert not list(differences(seen[0].pop(0), seen[1].pop(0), "buffers"))
        compare(seen[0], seen[1], name)


# --- the same through torch.autograd's own checks ---


@pytest.mark.parametrize("name", ["matmul", "linalg", "in-place", "checkpointed"])
def test_gradgradcheck(name: str) -> None:
    arguments = [leaf.clone().requires_grad_() for leaf in (numbers(3, 4), numbers(4, 3).t() + 0.5)]
    jitted = jit(FUNCTIONS[name])
    assert torch.autograd.gradcheck(jitted, arguments, fast_mode=True)
    assert torch.autograd.gradgradcheck(jitted, arguments, fast_mode=True)


# --- sg.grad of sg.grad ---


@pytest.mark.parametrize("name", ["views", "in-place", "detached factor", "unused input", "attention", "checkpointed"])
def test_nested_sg_grad(name: str) -> None:
    """The gradient of a scalar of the gradient, with respect to each argument, and no draw more than eager's."""
    function, arguments = FUNCTIONS[name], (numbers(3, 4), numbers(4, 3).t() + 0.5)

    def first(*args: Tensor) -> Tensor:
        return total_of_one(sg.grad(lambda x, w: total_of_one(function(x, w)), executors=["torch"])(*args))

    def total_of_one(made: Tensor) -> Tensor:
        return made.square().sum()

    torch.manual_seed(0)
    found = [sg.grad(first, (0, 1), executors=["torch"])(*arguments), torch.get_rng_state()]
    torch.manual_seed(0)
    x, w = (leaf.clone().requires_grad_() for leaf in arguments)
    (once,) = torch.autograd.grad(total_of_one(function(x, w)), x, create_graph=True)
    twice = torch.autograd.grad(total_of_one(once), (x, w), materialize_grads=True)
    assert not list(differences([twice, torch.get_rng_state()], found, name, ROUNDED))


# --- what people do with it ---


def energy(x: Tensor, w: Tensor) -> Tensor:
    return (torch.tanh(x @ w.t()) @ w).square().sum()


def test_hessian_vector_products() -> None:
    """Forward over one `create_graph` backward, backwards for several vectors, and the whole matrix."""
    w, vectors = numbers(4, 3).t() + 0.5, [numbers(3, 4), numbers(4, 3).t() * 2]

    def products(target: Function) -> list[Tensor]:
        x = numbers(3, 4, grad=True)
        (gradient,) = torch.autograd.grad(target(x, w), x, create_graph=True)
        return [torch.autograd.grad(gradient, x, vector, retain_graph=True)[0] for vector in vectors]

    jitted = jit(energy)
    assert not list(differences(products(energy), products(jitted), "products", ROUNDED))
    by_sg = [
        sg.grad(lambda x, v=vector: (sg.grad(energy, executors=["torch"])(x, w) * v).sum(), executors=["torch"])(
            numbers(3, 4)
        )
        for vector in vectors
    ]
    assert not list(differences(products(energy), by_sg, "products by sg.grad", ROUNDED))
    hessians = [torch.autograd.functional.hessian(lambda x, f=f: f(x, w), numbers(3, 4)) for f in (energy, jitted)]
    assert not list(differences(hessians[0], hessians[1], "Hessian", ROUNDED))


def test_gradient_penalty_accumulates_into_parameters() -> None:
    """The penalty's backward goes through the first gradient into `.grad`, twice, beside the loss's own."""
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()

    def step(owner: nn.Module, target: Function) -> list[Any]:
        seen: list[Any] = []
        for shift in (0, 1):
            x = (numbers(5, 3) + shift).requires_grad_()
            made = target(x)
            (gradient,) = torch.autograd.grad(made.sum(), x, create_graph=True)
            (made.mean() + (gradient.norm(dim=1) - 1).square().mean()).backward()
            seen += [made, gradient]
        return [*seen, [parameter.grad for parameter in owner.parameters()]]

    eager, ours = copy.deepcopy(module), copy.deepcopy(module)
    expected, found = step(eager, eager), step(ours, jit(ours))
    assert not list(differences(expected[:2], found[:2], "first order"))
    assert not list(differences(expected, found, "penalty", ROUNDED))


def test_inner_steps_of_maml() -> None:
    """Three inner steps with the graph kept, and the outer gradient through all of them; one entry for all."""

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return (torch.sin(x @ w) @ w.t() - x).square().mean()

    def outer(target: Function) -> list[Any]:
        w, rate = numbers(4, 2, grad=True), torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        fast = w
        for step in range(3):
            (gradient,) = torch.autograd.grad(target(fast, numbers(3, 4) + step), fast, create_graph=True)
            fast = fast - rate * gradient
        target(fast, numbers(3, 4)).backward()
        return [fast, w.grad, rate.grad]

    assert not list(differences(outer(loss), outer(jit(loss)), "maml", ROUNDED))


# --- through registered rules, in each form, saving what they need ---


def pullback_form(table: sg.Table) -> None:
    @table.grad_rule(torch.tanh)
    def rule(x: Tensor) -> Any:
        y = torch.tanh(x)
        return y, lambda grad: grad * (1 - y * y)


def pullback_form_of_input(table: sg.Table) -> None:
    @table.grad_rule(torch.tanh)
    def rule(x: Tensor) -> Any:
        return torch.tanh(x), lambda grad: grad / torch.cosh(x).square()


def transform_form(table: sg.Table) -> None:
    @table.grad_transform(torch.tanh)
    def rule(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        sg.put_grad(x, sg.get_grad(y) * (1 - y * y))
        return y


def augmented_form(table: sg.Table) -> None:
    table.augmented(
        torch.tanh,
        forward=lambda x: ((y := torch.tanh(x)), (y, y * y, 2.0)),
        backward=lambda y, square, two, grad: grad * (1 - square) * (two / 2) + 0 * y,
    )


def composite_form(table: sg.Table) -> None:
    """A rule for a composite, that saves what it computes on its way and a Python number."""

    @table.grad_rule(F.linear)
    def rule(x: Tensor, weight: Tensor) -> Any:
        turned, factor = weight.t(), 2.0
        return x @ turned, lambda grad: (grad @ turned.t() * (factor / 2), grad.t() @ x)


RULES = {
    "pullback": pullback_form,
    "pullback of the input": pullback_form_of_input,
    "transform": transform_form,
    "augmented": augmented_form,
    "composite": composite_form,
}


def through_rules(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(F.linear(torch.tanh(x * 0.5), w)) * x[:, :3]


@pytest.mark.parametrize("way", ["create_graph", "sg.grad", "checkpointed"])
@pytest.mark.parametrize("form", RULES)
def test_registered_rules(form: str, way: str) -> None:
    """The rules say what PyTorch's formulas say, so every order is eager's but for rounding; and they are asked."""
    table = sg.Table("mine")
    RULES[form](table)
    options: dict[str, Any] = {"executors": ["torch"], "grad_rules": table}

    def function(x: Tensor, w: Tensor) -> Tensor:
        if way == "checkpointed":
            return checkpoint(through_rules, x, w, use_reentrant=False)  # type: ignore[no-any-return]
        return through_rules(x, w)

    leaves = [numbers(3, 4), numbers(4, 3).t() + 0.5]
    expected = orders(function, [leaf.clone().requires_grad_() for leaf in leaves], 2)
    if way == "sg.grad":
        once = sg.grad(lambda x, w: function(x, w).square().sum(), (0, 1), **options)
        twice = sg.grad(
            lambda x, w: sum((i + 1) * g.square().sum() for i, g in enumerate(once(x, w))), (0, 1), **options
        )
        found = [list(once(*leaves)), list(twice(*leaves))]
        assert not list(differences([[g.detach() for g in one] for one in expected[1:3]], found, form, ROUNDED))
    else:
        jitted = sg.jit(function, **options)
        found = orders(jitted, [leaf.clone().requires_grad_() for leaf in leaves], 2)
        assert not list(differences(expected, found, form, ROUNDED))
        shown = [str(link.rule) for item in sg.last_backward_traces(jitted)[-1].bound_symbols for link in item.links]
        assert any("mine" in rule for rule in shown)


def test_rule_that_saves_a_view_of_an_input_and_another_grad_output_than_expected() -> None:
    """First order, by an expanded grad output, for which a backward of its own is made from what was saved."""
    table = sg.Table("mine")
    composite_form(table)
    leaves = [numbers(3, 4, grad=True), numbers(5, 4, grad=True)]
    expected = torch.autograd.grad(F.linear(*leaves).sum(), leaves)
    found = torch.autograd.grad(jit(F.linear, grad_rules=table)(*leaves).sum(), leaves)
    assert not list(differences(expected, found, "gradients"))


@pytest.mark.parametrize("form", ["pullback", "transform", "augmented"])
def test_rule_and_not_pytorchs_formula_is_differentiated_again(form: str) -> None:
    """A rule that says three times the derivative: so says the second order of a `create_graph` backward."""
    table = sg.Table("mine")
    if form == "pullback":
        table.grad_rule(torch.sin)(lambda x: (torch.sin(x), lambda grad: grad * 3 * torch.cos(x)))
    elif form == "augmented":
        table.augmented(torch.sin, forward=lambda x: (torch.sin(x), (x,)), backward=lambda x, g: g * 3 * torch.cos(x))
    else:

        @table.grad_transform(torch.sin)
        def rule(x: Tensor) -> Tensor:
            y = torch.sin(x)
            sg.put_grad(x, sg.get_grad(y) * 3 * torch.cos(x))
            return y

    x = numbers(3, grad=True)
    (first,) = torch.autograd.grad(jit(torch.sin, grad_rules=table)(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, 3 * torch.cos(x))
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, -3 * torch.sin(x))


# --- custom Functions ---


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 5 * x * x  # type: ignore[no-any-return]  # not the true derivative, so that it shows whose is used


class SavesResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp() * w
        ctx.save_for_backward(y, w, x)
        return y, x.argmax()

    @staticmethod
    def backward(ctx: Any, grad: Tensor, nothing: Any) -> Any:
        y, w, x = ctx.saved_tensors
        return grad * y, grad * x.exp() + 0 * w


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def cube(x: Tensor) -> Tensor:
    return Cube.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def saves_result(x: Tensor, w: Tensor) -> Tensor:
    return SavesResult.apply(x, w)[0]  # type: ignore[no-any-return, no-untyped-call]


def marked(x: Tensor) -> Tensor:
    return Marked.apply(x)  # type: ignore[no-any-return, no-untyped-call]


CUSTOM: dict[str, Function] = {
    "input saved": lambda x, w: cube(x * w).sin(),
    "result saved": lambda x, w: saves_result(x, w) * w,
    "twice": lambda x, w: cube(cube(x) * w),
    "checkpointed": lambda x, w: checkpoint(lambda a: cube(a).cos(), x * w, use_reentrant=False),
}


def test_custom_function_that_marks_its_argument_dirty_falls_back() -> None:
    arguments = (numbers(3, 4), numbers(4, 3).t() + 0.5)
    assert_falls_back(lambda x, w: marked(x * w).exp() * x, lambda: arguments, "dirty")


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_function(name: str) -> None:
    check(CUSTOM[name], numbers(3, 4), numbers(4, 3).t() + 0.5)


# --- random numbers ---


@pytest.mark.parametrize("name", ["dropout", "dropout checkpointed", "noise"])
def test_backward_of_any_order_leaves_the_stream_alone(name: str) -> None:
    """Nothing is drawn after the forward; and the mask is the forward's, however the stream stands by then."""
    jitted, x, w = jit(FUNCTIONS[name]), numbers(3, 4, grad=True), numbers(4, 3).t() + 0.5
    for _ in range(2):
        torch.manual_seed(3)
        expected = orders(FUNCTIONS[name], [x, w.detach().requires_grad_()], 2, 3)
        torch.manual_seed(3)
        made = jitted(x, w)
        after = torch.get_rng_state()
        (first,) = torch.autograd.grad(total(made), x, create_graph=True)
        assert torch.equal(torch.get_rng_state(), after)
        torch.rand(7)
        moved = torch.get_rng_state()
        (second,) = torch.autograd.grad(first.square().sum(), x)
        assert torch.equal(torch.get_rng_state(), moved)
        torch.testing.assert_close(first, expected[1][0], rtol=0, atol=0)
        eagers, leaf = FUNCTIONS[name], x.detach().clone().requires_grad_()
        torch.manual_seed(3)
        (once,) = torch.autograd.grad(total(eagers(leaf, w)), leaf, create_graph=True)
        torch.testing.assert_close(second, torch.autograd.grad(once.square().sum(), leaf)[0], rtol=1e-10, atol=1e-12)


# --- the graph ---


def test_retained_graph() -> None:
    """Gradients of each order more than once from one graph, and freed where it is not retained."""

    def outcome(target: Function) -> list[Any]:
        x, w = numbers(3, 4, grad=True), numbers(4, 3).t() + 0.5
        made = target(x, w)
        (plain,) = torch.autograd.grad(made.sum(), x, retain_graph=True)
        firsts = [torch.autograd.grad(made.square().sum(), x, create_graph=True)[0] for _ in range(2)]
        seconds = [torch.autograd.grad(firsts[0].sum(), x, retain_graph=True)[0] for _ in range(2)]
        last = torch.autograd.grad(firsts[0].sum(), x)[0]
        seen: list[Any] = [plain, *firsts, *seconds, last]
        try:
            torch.autograd.grad(firsts[0].sum(), x)
        except RuntimeError as error:
            seen.append("second time" in str(error))
        return seen

    expected, found = outcome(FUNCTIONS["matmul"]), outcome(jit(FUNCTIONS["matmul"]))
    assert expected[-1] is True
    assert not list(differences(expected[:3], found[:3], "first order"))
    assert not list(differences(expected, found, "outcome", ROUNDED))


@pytest.mark.parametrize("used", [(0,), (1,), (3,), (0, 3), (0, 1, 3)])
def test_some_of_several_outputs(used: tuple[int, ...]) -> None:
    """Second order of some outputs: which gradients are None is eager's; the other outputs' paths are not taken."""

    def outcome(target: Function) -> list[Any]:
        leaves = [numbers(3, 4, grad=True), (numbers(4, 3).t() + 0.5).requires_grad_()]
        made = target(*leaves)
        firsts = torch.autograd.grad(
            sum(made[index].sum() for index in used), leaves, create_graph=True, allow_unused=True
        )
        wanted = [first for first in firsts if first is not None and first.requires_grad]
        return [firsts, torch.autograd.grad(total(wanted), leaves, allow_unused=True)]

    several = FUNCTIONS["several outputs"]
    expected, found = outcome(several), outcome(jit(several))
    assert not list(differences(expected[0], found[0], "first order"))
    assert not list(differences(expected[1], found[1], "second order", ROUNDED))


def test_gradient_with_respect_to_the_grad_output() -> None:
    """The backward is linear in the grad output, which may require grad itself, an expanded or transposed one too."""

    def outcome(target: Function) -> list[Any]:
        seen: list[Any] = []
        for shape, laid in (((3, 4), Tensor.clone), ((4, 3), Tensor.t), ((1, 4), lambda v: v.expand(3, 4))):
            x, w, v = numbers(3, 4, grad=True), numbers(4, 3).t() + 0.5, numbers(*shape, grad=True)
            (first,) = torch.autograd.grad(target(x, w), x, laid(v), create_graph=True)
            seen += [first, *torch.autograd.grad(first.square().sum(), (x, v))]
        return seen

    assert not list(differences(outcome(FUNCTIONS["pointwise"]), outcome(jit(FUNCTIONS["pointwise"])), "v", ROUNDED))


def test_mutated_argument_at_second_order() -> None:
    """In-place on an argument that is the result of something, differentiated twice through the write."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(w).sin_()
        return x * w

    def outcome(target: Function) -> list[Any]:
        leaves = [numbers(3, 4, grad=True), (numbers(4, 3).t() + 0.5).requires_grad_()]
        x = leaves[0] * 1
        made = target(x, leaves[1])
        firsts = torch.autograd.grad(total([made, x]), leaves, create_graph=True)
        return [firsts, torch.autograd.grad(total(firsts), leaves)]

    expected, found = outcome(function), outcome(jit(function))
    assert not list(differences(expected, found, "orders", ROUNDED))


def test_returned_view_that_is_written_to_at_second_order() -> None:
    """In-place on a returned view afterwards is part of both orders."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x * w
        return y, y.t()

    def outcome(target: Function) -> list[Any]:
        leaves = [numbers(3, 4, grad=True), (numbers(4, 3).t() + 0.5).requires_grad_()]
        base, view = target(*leaves)
        view[1].mul_(leaves[0][:, 0])
        firsts = torch.autograd.grad(base.square().sum(), leaves, create_graph=True)
        return [firsts, torch.autograd.grad(total(firsts), leaves)]

    expected, found = outcome(function), outcome(jit(function))
    assert not list(differences(expected[0], found[0], "first order", ROUNDED))
    assert not list(differences(expected, found, "orders", ROUNDED))


def test_backward_with_create_graph_accumulates() -> None:
    """`.backward(create_graph=True)` leaves a `.grad` that has a history, and adds to it."""

    def outcome(target: Function) -> list[Any]:
        x, w = numbers(3, 4, grad=True), numbers(4, 3).t() + 0.5
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using backward\\(\\) with create_graph")
            target(x, w).sum().backward(create_graph=True)
        first = x.grad
        assert first is not None
        x.grad = None
        (first.square().sum()).backward()
        return [first, x.grad]

    assert not list(differences(outcome(energy), outcome(jit(energy)), "grad", ROUNDED))
