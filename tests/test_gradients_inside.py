"""`torch.autograd.grad` and the transforms of `torch.func` inside a jitted function: all exactly eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import functional as autograd_functional
from torch.autograd import grad
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from switchgear import errors
from switchgear_core.ir.symbol import DEL
from tests.core.against_eager import check, numbers
from tests.core.training import Kernel, executor, rules
from tests.falling_back import assert_falls_back, falls_back
from tests.oracle import assert_same, fallbacks_recorded, step
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager

Function = Callable[..., Any]
func = torch.func


def jit(function: Function, **options: Any) -> Function:
    jitted: Function = sg.jit(function, **{"executors": EXECUTORS, **options})
    return jitted


def x_and_w() -> tuple[Tensor, Tensor]:
    return numbers(4, 3), numbers(3, 3, grad=True)


def named(functions: list[Function]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("function", functions, ids=[function.__name__ for function in functions])


# --- torch.autograd.grad ---


def with_respect_to_an_input(x: Tensor, w: Tensor) -> Any:
    loss = torch.tanh(x @ w).sum()
    return loss.detach(), *grad(loss, [w])


def with_respect_to_an_intermediate_and_what_it_came_from(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    return grad(torch.sin(y).sum(), [w, y])


def with_respect_to_an_intermediate_alone(x: Tensor, w: Tensor) -> Any:
    y = F.layer_norm(x @ w, (3,))
    return grad(torch.sin(y), y, torch.cos(y.detach()))


def one_after_the_other(x: Tensor, w: Tensor) -> Any:
    y = torch.sin(x @ w)
    (first,) = grad(y.sum(), [w], retain_graph=True)
    (second,) = grad((y * y).sum(), [w])
    return first, second, first * second


def one_from_the_other(x: Tensor, w: Tensor) -> Any:
    (first,) = grad((x @ w).tanh().sum(), w)
    return grad((x @ (w - 0.1 * first)).tanh().sum(), w)


def several_outputs(x: Tensor, w: Tensor) -> Any:
    y = w.sin()
    return grad([y, (w * 2).sum(), y], [w], [x[:3], None, x[1:]])


def unused(x: Tensor, w: Tensor) -> Any:
    z = w * 2
    return grad((w * w).sum(), [w, z], allow_unused=True)


def unused_as_zeros(x: Tensor, w: Tensor) -> Any:
    z = (w * 2).t()
    return grad((w * w).sum(), [w, z], materialize_grads=True)


def grad_output_of_another_dtype(x: Tensor, w: Tensor) -> Any:
    return grad(w.sin(), w, torch.ones(3, 3, dtype=torch.float32))


def grad_output_handed_through(x: Tensor, w: Tensor) -> Any:
    cotangent = x[:3] * 2
    (found,) = grad(w + 1, w, cotangent)
    found.mul_(3)
    return found * 1, cotangent * 1


def gradients_that_are_one_tensor(x: Tensor, w: Tensor) -> Any:
    a, b = w * 2, w * 3
    left, right = grad(a + b, [a, b], x[:3] * 1)
    left.mul_(2)
    return left * 1, right * 1


def expanded(x: Tensor, w: Tensor) -> Any:
    (found,) = grad(w.sum(), w)
    return found, found + 1


def of_views(x: Tensor, w: Tensor) -> Any:
    (found,) = grad(w.t().reshape(-1)[2:].sum() + w.expand(2, 3, 3).sum(), w)
    return found.add_(1)


def complex_numbers(x: Tensor, w: Tensor) -> Any:
    return grad(torch.view_as_real(torch.fft.fft(torch.complex(w, w * 2))).square().sum(), w)


def under_no_grad(x: Tensor, w: Tensor) -> Any:
    loss = torch.tanh(x @ w).sum()
    with torch.no_grad():
        (found,) = grad(loss, w)
    return found + w


def after_a_write_that_autograd_did_not_see(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    with torch.no_grad():
        y.mul_(2)
    return grad((y * 3).sum(), [w, y])


def of_a_leaf_written_since(x: Tensor, w: Tensor) -> Any:
    loss = (x @ w).sum()
    with torch.no_grad():
        w.mul_(2)
    return grad(loss, w)


def in_place_calls_between(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    y.mul_(2)
    y[0] = w[0]
    return grad(y.exp_().sum(), w)


def dropout_between(x: Tensor, w: Tensor) -> Any:
    loss = (F.dropout(x @ w) * torch.rand(4, 3)).sum()
    return loss, *grad(loss, [w], retain_graph=True)


def autocast_between(x: Tensor, w: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        loss = (x.float() @ w.float()).float().square().sum()
    return grad(loss, w)


def checkpoint_between(x: Tensor, w: Tensor) -> Any:
    return grad(checkpoint(lambda value: torch.sin(value @ w), x, use_reentrant=False).sum(), w)


def loss_differentiated_again_outside(x: Tensor, w: Tensor) -> Any:
    loss = torch.tanh(x @ w).sum()
    (found,) = grad(loss, [w], retain_graph=True)
    return loss, found


def no_gradient_flows_through_it(x: Tensor, w: Tensor) -> Any:
    (found,) = grad(torch.tanh(x @ w).sum(), w)
    return (found * w).sum()


def first_order_maml(x: Tensor, w: Tensor) -> Any:
    fast = w
    for _ in range(3):
        fast = fast - 0.1 * grad((x @ fast).tanh().square().mean(), fast, retain_graph=True)[0]
    return (x @ fast).square().sum()


def clipped_in_place(x: Tensor, w: Tensor) -> Any:
    found = list(grad((x @ w).sin().sum(), [w]))
    norm = torch.stack([value.norm() for value in found]).norm()
    torch._foreach_mul_(found, (1 / (norm + 1e-6)).clamp(max=1))
    return found


def sparse_gradient(x: Tensor, w: Tensor) -> Any:
    return grad(F.embedding(torch.tensor([1, 0, 1]), w, sparse=True).sum(), w)[0].to_dense()


def view_written_after_it_was_told(x: Tensor, w: Tensor) -> Any:
    y = (x * 2).view(-1).requires_grad_()
    with torch.no_grad():
        y.mul_(2)
    return grad((y.view(4, 3) @ w).sum(), y)


@named(
    [
        with_respect_to_an_input,
        with_respect_to_an_intermediate_and_what_it_came_from,
        with_respect_to_an_intermediate_alone,
        one_after_the_other,
        one_from_the_other,
        several_outputs,
        unused,
        unused_as_zeros,
        grad_output_of_another_dtype,
        grad_output_handed_through,
        gradients_that_are_one_tensor,
        expanded,
        of_views,
        complex_numbers,
        under_no_grad,
        of_a_leaf_written_since,
        in_place_calls_between,
        dropout_between,
        autocast_between,
        checkpoint_between,
        loss_differentiated_again_outside,
        no_gradient_flows_through_it,
        first_order_maml,
        clipped_in_place,
        sparse_gradient,
    ]
)
def test_autograd_grad(function: Function) -> None:
    check(function, *x_and_w())


NETS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "convolution": (lambda: nn.Conv2d(2, 3, 2), (2, 2, 4, 3)),
    "batch norm": (lambda: nn.BatchNorm1d(3), (5, 3)),
    "gru": (lambda: nn.GRU(3, 4, batch_first=True), (2, 5, 3)),
    "lstm": (lambda: nn.LSTM(3, 4, 2, batch_first=True), (2, 5, 3)),
    "transformer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (2, 3, 4)),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_gradients_of_modules(name: str, create_graph: bool) -> None:
    make, shape = NETS[name]
    torch.manual_seed(1)
    net = make()

    class Gradients(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Any:
            output = self.net(x)
            output = output[0] if isinstance(output, tuple) else output
            return grad(output.square().sum(), [x, *self.net.parameters()], create_graph=create_graph)

    check(Gradients(), numbers(*shape, grad=True, dtype=torch.float32))


# --- create_graph ---


def gradient_penalty(x: Tensor, w: Tensor) -> Any:
    (found,) = grad(torch.tanh(x @ w).sum(), w, create_graph=True)
    return (found.norm(2) - 1) ** 2


def maml(x: Tensor, w: Tensor) -> Any:
    fast = w
    for _ in range(3):
        fast = fast - 0.1 * grad((x @ fast).tanh().square().mean(), fast, create_graph=True)[0]
    return (x @ fast).square().sum()


def three_orders(x: Tensor, w: Tensor) -> Any:
    (first,) = grad((x @ w).sin().sum(), w, create_graph=True)
    (second,) = grad((first * first).sum(), w, create_graph=True)
    (third,) = grad(second.sum(), w, retain_graph=True)
    return third, second


def zeros_that_require_grad(x: Tensor, w: Tensor) -> Any:
    z = w * 2
    found, zeros = grad((w * w).sum(), [w, z], create_graph=True, materialize_grads=True)
    return found * zeros


def batched(x: Tensor, w: Tensor) -> Any:
    return grad(torch.tanh(w[0]), [w], torch.eye(3, dtype=w.dtype), is_grads_batched=True)


@named([gradient_penalty, maml, three_orders, zeros_that_require_grad, batched])
def test_create_graph(function: Function) -> None:
    check(function, *x_and_w())


def of_a_scalar(x: Tensor) -> Tensor:
    return torch.sin(x * x.sum()).sum().exp()


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", ["jacobian", "hessian", "vjp", "jvp", "hvp", "vhp"])
def test_autograd_functional(name: str, create_graph: bool) -> None:
    transform = getattr(autograd_functional, name)
    target = of_a_scalar if name in ("hessian", "hvp", "vhp") else torch.sin
    more = () if name in ("jacobian", "hessian") else (numbers(3),)
    check(lambda x, *v: transform(target, x, *v, create_graph=create_graph), numbers(3, grad=True), *more)
    if not more:
        check(
            lambda x: transform(target, x, create_graph=create_graph, vectorize=True),
            numbers(3, grad=True),
        )


# --- requires_grad_() ---


def detached_and_asked_for(x: Tensor, w: Tensor) -> Any:
    y = w.detach().requires_grad_()
    (found,) = grad((y * y * w).sum(), [y])
    return (found * w).sum()


def set_as_an_attribute(x: Tensor, w: Tensor) -> Any:
    y = w.clone().detach()
    y.requires_grad = True
    (found,) = grad((y * w).sum(), [y], create_graph=True)
    return (found * w).sum()


def asked_of_a_factory(x: Tensor, w: Tensor) -> Any:
    scale = torch.tensor(2.0, requires_grad=True, dtype=x.dtype)
    return grad((x @ w * scale).sin().sum(), [scale, w])


def adversarial_steps(x: Tensor, w: Tensor) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        (found,) = grad(((x + delta) @ w).sin().sum(), delta)
        with torch.no_grad():
            delta.add_(0.1 * found.sign()).clamp_(-0.15, 0.15)
    return ((x + delta.detach()) @ w).sum()


def asked_for_again(x: Tensor, w: Tensor) -> Any:
    delta = torch.zeros_like(x)
    for _ in range(3):
        delta.requires_grad_()
        delta = (delta + 0.1 * grad(((x + delta) @ w).sin().sum(), delta)[0]).detach()
    return ((x + delta) @ w).sin().sum()


def switched_off(x: Tensor, w: Tensor) -> Any:
    delta = torch.zeros_like(x).requires_grad_()
    (found,) = grad(((x + delta) @ w).sum(), delta)
    delta.requires_grad_(False)
    delta.add_(found)
    return (delta @ w).sum()


def asked_of_a_view(x: Tensor, w: Tensor) -> Any:
    y = (x * 2).view(-1).requires_grad_()
    (found,) = grad((y * y).sum(), y, retain_graph=True)
    return found, grad((y.view(4, 3) @ w).sum(), [y, w])


def beside_an_input(x: Tensor, w: Tensor) -> Any:
    return ((x + torch.zeros_like(x, requires_grad=True)) @ w).sin()


@named(
    [
        detached_and_asked_for,
        set_as_an_attribute,
        asked_of_a_factory,
        asked_for_again,
        switched_off,
        asked_of_a_view,
        beside_an_input,
    ]
)
def test_requires_grad_of_what_is_made_inside(function: Function) -> None:
    check(function, *x_and_w())


def test_forces_of_a_potential() -> None:
    class Potential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()

        def forward(self, positions: Tensor) -> Any:
            positions = positions.detach().requires_grad_()
            energy = self.net(positions).sum()
            return energy, -grad(energy, positions, create_graph=True)[0]

    torch.manual_seed(1)
    check(Potential(), numbers(5, 3))


# --- rules ---


def recorded(called: list[str]) -> sg.Table:
    """A table with a rule for `torch.sin` that says when it is called."""

    def rule(x: Tensor) -> Any:
        called.append("rule")

        def pullback(cotangent: Tensor) -> Tensor:
            called.append("pullback")
            return cotangent * torch.cos(x)

        return torch.sin(x), pullback

    return rules(torch.sin, rule)


def whole_step(x: Tensor, w: Tensor) -> Tensor:
    loss = torch.sin(x @ w).sum()
    (found,) = grad(loss, w)
    with torch.no_grad():
        w.sub_(found, alpha=0.1)
    return loss.detach()


def test_rule_is_called_in_a_whole_step_trace() -> None:
    called: list[str] = []
    jitted = jit(whole_step, grad_rules=recorded(called))
    x, w = x_and_w()
    _, expected = x_and_w()
    for _ in range(3):
        assert_same(jitted(x, w), whole_step(x, expected))
        assert_same(w, expected)
    assert called.count("pullback") == 1


def test_every_line_of_an_inner_gradient_is_linked() -> None:
    jitted = jit(whole_step, grad_rules=recorded([]))
    x, w = x_and_w()
    jitted(x, w.detach().clone().requires_grad_())  # no view, a write to which takes more lines
    shown = [
        (item.symbol.name, str(item.links[0].rule) if item.links else "")
        for item in sg.last_traces(jitted)[-1].bound_symbols
        if item.symbol is not DEL
    ]
    assert shown == [
        ("aten.mm.default", ""),
        ("aten.sin.default", ""),
        ("aten.sum.default", ""),
        ("aten.cos.default", "mine (pullback)"),
        ("torch.mul", "mine (pullback)"),
        ("aten.t.default", "derived (aten.mm)"),
        ("aten.mm.default", "derived (aten.mm)"),
        ("aten.sub_.Tensor", ""),
        ("aten.detach.default", ""),
    ]
    inner = next(trace for trace in sg.last_traces(jitted) if trace.provenance[-1].name == "inner_gradients")
    assert "torch.autograd.grad(" not in inner.python()
    sources = [link.forward.source for item in inner.bound_symbols for link in item.links]
    assert sources
    assert all(source is not None and source.file == __file__ for source in sources)


def test_choices_name_the_rule() -> None:
    jitted = jit(whole_step, grad_rules=recorded([]))
    jitted(*x_and_w())
    chosen = {(choice.symbol, choice.owner) for choice in sg.last_choices(jitted) if choice.kind == "gradient"}
    assert ("torch.sin", "mine") in chosen
    assert ("aten.mm.default", "derived") in chosen


@named([whole_step, one_after_the_other, loss_differentiated_again_outside, no_gradient_flows_through_it])
@pytest.mark.parametrize("form", ["pullback", "transform", "augmented"])
def test_rules_of_each_form(function: Function, form: str) -> None:
    table = sg.Table("mine")
    if form == "pullback":
        table = recorded([])
    elif form == "transform":

        @table.grad_transform(torch.sin)
        def sine(x: Tensor) -> Tensor:
            y = torch.sin(x)
            sg.put_grad(x, sg.get_grad(y) * torch.cos(x))
            return y
    else:
        table.augmented(
            torch.sin,
            forward=lambda x: (torch.sin(x), (torch.cos(x),)),
            backward=lambda cosine, cotangent: cotangent * cosine,
        )
    assert_same(step(jit(function, grad_rules=table), *x_and_w()), step(function, *x_and_w()))


def test_an_enclosing_gradient_uses_the_rule_again() -> None:
    called: list[str] = []

    def both(x: Tensor, w: Tensor) -> Any:
        y = torch.sin(x @ w)
        return y, *grad(y.sum(), [w], retain_graph=True)

    assert_same(step(jit(both, grad_rules=recorded(called)), *x_and_w()), step(both, *x_and_w()))
    assert called.count("pullback") == 2


def test_random_numbers_are_drawn_once_where_an_enclosing_gradient_needs_them() -> None:
    def rule(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        mask = (torch.rand_like(x) > p) / (1 - p)
        return x * mask, lambda cotangent: cotangent * mask

    def noisy(x: Tensor, w: Tensor) -> Any:
        loss = (F.dropout(x @ w) * x).sum()
        return loss, *grad(loss, [w], retain_graph=True)

    jitted = jit(noisy, grad_rules=rules(F.dropout, rule))
    assert_same(step(jitted, *x_and_w()), step(noisy, *x_and_w()))
    state = torch.get_rng_state()
    step(noisy, *x_and_w())
    assert torch.equal(torch.get_rng_state(), state)


def test_rule_whose_gradient_has_another_layout() -> None:
    table = rules(torch.matmul, lambda a, b: (a @ b, lambda cotangent: (cotangent @ b.t(), (cotangent.t() @ a).t())))

    def flat(x: Tensor, w: Tensor) -> Tensor:
        return grad(torch.sin(x @ w).sum(), w)[0].view(-1)

    assert_same(jit(flat, grad_rules=table)(*x_and_w()), flat(*x_and_w()))


def test_rule_that_returns_an_argument_or_nothing() -> None:
    table = rules(torch.mul, lambda a, b: (a * b, lambda cotangent: (b, a)))

    def product(x: Tensor, w: Tensor) -> Tensor:
        return grad((w * w.detach()).sum(), w)[0]

    assert_same(jit(product, grad_rules=table)(*x_and_w()), product(*x_and_w()))
    table = rules(torch.mul, lambda a, b: (a * b, lambda cotangent: (None, None)))
    assert_same(jit(product, grad_rules=table)(*x_and_w()), torch.zeros(3, 3, dtype=torch.float64))


def test_forward_kept_for_an_executor_is_run_once() -> None:
    kernel = Kernel(F.gelu)

    def both(x: Tensor, w: Tensor) -> Any:
        y = F.gelu(x @ w)
        return y, *grad(y.sum(), [w], retain_graph=True)

    jitted = jit(both, executors=[executor("mine", {F.gelu: kernel}), "torch"])
    assert_same(step(jitted, *x_and_w()), step(both, *x_and_w()))
    assert kernel.calls == 1


# --- whole training steps ---


def with_sgd(foreach: bool, momentum: float, detach: bool = True) -> Function:
    def make(model: nn.Module) -> tuple[Function, list[Tensor]]:
        parameters: list[Tensor] = list(model.parameters())
        buffers: list[Tensor | None] = [torch.zeros_like(p) if momentum else None for p in parameters]

        def train(x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(model(x), y)
            gradients = list(grad(loss, parameters))
            with torch.no_grad():
                sgd(
                    parameters,
                    gradients,
                    buffers,
                    has_sparse_grad=False,
                    foreach=foreach,
                    weight_decay=0.01,
                    momentum=momentum,
                    lr=0.1,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                )
            return loss.detach() if detach else loss

        return train, [buffer for buffer in buffers if buffer is not None]

    return make


def with_adamw(model: nn.Module) -> tuple[Function, list[Tensor]]:
    """Its `differentiable` form keeps the step a tensor, the default one asks for its value."""
    parameters: list[Tensor] = list(model.parameters())
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    steps = [torch.tensor(0.0) for _ in parameters]

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        gradients = list(grad(loss, parameters))
        with torch.no_grad():
            adamw(
                parameters,
                gradients,
                first,
                second,
                [],
                steps,
                foreach=False,
                differentiable=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=0.01,
                weight_decay=0.01,
                eps=1e-8,
                maximize=False,
            )
        return loss.detach()

    return train, [*first, *second, *steps]


def with_tensor_arithmetic(model: nn.Module) -> tuple[Function, list[Tensor]]:
    parameters: list[Tensor] = list(model.parameters())
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    count = torch.zeros(())

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        gradients = grad(loss, parameters)
        with torch.no_grad():
            count.add_(1)
            scale, root = 0.01 / (1 - 0.9**count), (1 - 0.999**count).sqrt()
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                p.mul_(1 - 1e-4)
                m.lerp_(g, 0.1)
                v.mul_(0.999).addcmul_(g, g, value=0.001)
                p.sub_(scale * m / (v.sqrt() / root + 1e-8))
        return loss.detach()

    return train, [*first, *second, count]


STEPS = {
    "sgd": with_sgd(False, 0.0),
    "sgd with momentum": with_sgd(False, 0.9),
    "sgd foreach": with_sgd(True, 0.9),
    "sgd, loss returned as it is": with_sgd(False, 0.9, detach=False),
    "adamw": with_adamw,
    "adamw in tensor arithmetic": with_tensor_arithmetic,
}


@pytest.mark.parametrize("name", STEPS)
def test_whole_training_steps(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))
    x, y = torch.randn(10, 6), torch.randint(3, (10,))

    def run(compile_it: bool) -> list[Tensor]:
        trained = copy.deepcopy(model)
        train, state = STEPS[name](trained)
        called = jit(train) if compile_it else train
        torch.manual_seed(5)
        losses = [called(x, y).detach().clone() for _ in range(20)]
        return [*losses, *(p.detach() for p in trained.parameters()), *state, torch.get_rng_state()]

    assert_same(run(True), run(False))


def default_adamw(x: Tensor, w: Tensor, **options: Any) -> Tensor:
    (found,) = grad((x @ w).sum(), w)
    steps, moments = torch.zeros(()), torch.zeros_like(w)
    hyper: dict[str, Any] = {
        "amsgrad": False,
        "beta1": 0.9,
        "beta2": 0.999,
        "lr": 0.1,
        "weight_decay": 0.0,
        "eps": 1e-8,
    }
    with torch.no_grad():
        adamw([w], [found], [moments], [moments * 1], [], [steps + w[0, 0]], maximize=False, **hyper, **options)
    return found


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"foreach": False}, errors.DataDependent),
        ({"foreach": True}, errors.DataDependent),
        ({"fused": True}, errors.Unsupported),
    ],
)
def test_forms_of_adamw_that_need_the_value_of_the_step_are_refused(
    options: dict[str, Any], kind: type[Exception]
) -> None:
    x, w = x_and_w()
    with pytest.raises(kind, match=r"test_gradients_inside\.py:\d+|fused"):
        sg.jit(lambda x, w: default_adamw(x, w, **options), executors=["torch"], strict=True)(x, w)
    assert_same(w, x_and_w()[1])


# --- torch.func ---


def loss_of(x: Tensor) -> Tensor:
    return torch.tanh(x * x.sum()).sum()


torch.manual_seed(2)
LINEAR = nn.Linear(3, 3).double()
NORM = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()
ENSEMBLE = [nn.Linear(3, 2).double() for _ in range(3)]


def vjp_inside(x: Tensor) -> Any:
    output, pull = func.vjp(torch.sin, x)[:2]
    return output, pull(torch.ones_like(output)), pull(output)


def vmap_of_vjp(x: Tensor) -> Any:
    output, pull = func.vjp(torch.sin, x)[:2]
    return output, func.vmap(pull)(torch.eye(3, dtype=x.dtype))


def per_sample_gradients(x: Tensor) -> Any:
    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        return func.functional_call(LINEAR, parameters, (row,)).square().sum()  # type: ignore[no-any-return]

    return func.vmap(func.grad(loss), in_dims=(None, 0))(dict(LINEAR.named_parameters()), x.expand(4, 3))


def backward_in_vmap(x: Tensor) -> Any:
    leaf = x.detach().requires_grad_()
    output = torch.sin(leaf)
    return func.vmap(lambda v: grad(output, leaf, v, retain_graph=True)[0])(torch.eye(3, dtype=x.dtype))


def composites_in_vmap(x: Tensor) -> Any:
    attention = func.vmap(lambda y: F.scaled_dot_product_attention(y, y, y))(x.expand(2, 2, 4, 3))
    gradients = func.vmap(func.grad(lambda y: F.cross_entropy(F.layer_norm(y, (3,)), torch.tensor(1))))(x.expand(2, 3))
    return attention, gradients


def constants_in_vmap(x: Tensor) -> Any:
    return func.vmap(lambda y: y * torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3))(x.expand(2, 3))


def in_place_in_grad(x: Tensor) -> Any:
    return func.grad(lambda y: (y * 2).mul_(y).sum())(x)


def parameters_wrapped(x: Tensor) -> Any:
    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return func.functional_call(LINEAR, parameters, (x,)).sum()  # type: ignore[no-any-return]

    tangent = LINEAR.weight.detach() * 2
    return func.grad(loss)(dict(LINEAR.named_parameters())), func.jvp(lambda p: p @ x, (LINEAR.weight,), (tangent,))


TRANSFORMS: dict[str, Function] = {
    "grad": lambda x: func.grad(loss_of)(x),
    "grad_and_value": lambda x: func.grad_and_value(loss_of)(x),
    "grad at repeated elements": lambda x: func.grad(loss_of)(x[:1].expand(x.shape)),
    "grad of grad": lambda x: func.grad(lambda y: func.grad(loss_of)(y).sum())(x),
    "vjp": vjp_inside,
    "vmap of vjp": vmap_of_vjp,
    "jvp": lambda x: func.jvp(torch.sin, (x,), (x * 2,)),
    "hessian": lambda x: func.hessian(loss_of)(x),
    "jacrev": lambda x: func.jacrev(lambda y: LINEAR(y).tanh())(x),
    "jacfwd": lambda x: func.jacfwd(lambda y: LINEAR(y).tanh())(x),
    "vmap": lambda x: func.vmap(lambda y: torch.sin(y) * 2 + y)(x),
    "vmap over parameters": lambda x: func.vmap(lambda p, y: p * y, in_dims=(0, None))(LINEAR.weight, x),
    "vmap, parameters closed over": lambda x: func.vmap(lambda y: F.linear(y, LINEAR.weight).relu())(x.expand(4, 3)),
    "functional_call": lambda x: func.functional_call(LINEAR, {"weight": LINEAR.weight * 2}, (x,)),
    "per-sample gradients": per_sample_gradients,
    "parameters wrapped": parameters_wrapped,
    "torch.autograd.grad in vmap": backward_in_vmap,
    "composites": composites_in_vmap,
    "constants": constants_in_vmap,
    "in place": in_place_in_grad,
    "jitted function in grad": lambda x: func.grad(jit(loss_of))(x),
    "sg.grad of grad": lambda x: sg.grad(lambda y: func.grad(loss_of)(y).sum())(x),
    "sg.grad of torch.autograd.grad": lambda x: sg.grad(lambda y: (grad(loss_of(y), y)[0] * y).sum())(x),
}
#: These call Switchgear in eager too, where it is another thing.
_EXPECTED: dict[str, Function] = {"jitted function in grad": TRANSFORMS["grad"]}


@pytest.mark.parametrize("outer", [False, True], ids=["plain", "differentiated outside"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, outer: bool) -> None:
    x = numbers(3, grad=outer)
    if name in _EXPECTED:
        assert_same(step(jit(TRANSFORMS[name]), x), step(_EXPECTED[name], x))
    else:
        check(TRANSFORMS[name], x)


def test_vmap_dims_and_chunks() -> None:
    check(lambda x, y: func.vmap(lambda a, b: a * b, in_dims=(1, 0), out_dims=1)(x, y), numbers(4, 3), numbers(3, 4))
    check(lambda x: func.vmap(torch.sin, chunk_size=2)(x), numbers(4, 3))


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_vmap_draws_from_the_same_stream(randomness: str) -> None:
    def noisy(row: Tensor) -> Tensor:
        drawn = torch.rand(3) + torch.randn(3) + torch.randperm(3) + torch.bernoulli(torch.ones(3) / 2)
        return F.dropout(row) * torch.normal(0.0, 1.0, (3,)) + drawn + row.clone().bernoulli_(0.3)

    def batch(x: Tensor) -> Tensor:
        return func.vmap(noisy, randomness=randomness)(x)

    check(batch, numbers(4, 3))
    check(batch, numbers(3, 4).t())


def test_functional_call_with_buffers() -> None:
    def gradients(x: Tensor) -> Any:
        buffers = {name: value.clone() for name, value in NORM.named_buffers()}

        def loss(parameters: Any, buffers: Any) -> Any:
            return func.functional_call(NORM, (parameters, buffers), (x,)).square().mean(), buffers

        return func.grad(loss, has_aux=True)(dict(NORM.named_parameters()), buffers)

    check(gradients, numbers(5, 3))


def test_ensemble_of_modules() -> None:
    def ensemble(x: Tensor) -> Any:
        parameters, buffers = func.stack_module_state(ENSEMBLE)
        one = lambda p, b: func.functional_call(ENSEMBLE[0], (p, b), (x,))  # noqa: E731
        return func.vmap(one)(parameters, buffers).detach()

    check(ensemble, numbers(4, 3))


def test_write_to_what_vmap_closes_over() -> None:
    def write(x: Tensor) -> Any:
        return func.vmap(lambda y: x.add_(1) * y)(torch.ones(2, 3, dtype=x.dtype)), x

    check(write, numbers(3))


# --- refused ---


def unconnected(x: Tensor, w: Tensor) -> Any:
    return grad((w * 2).sum(), numbers(3, grad=True))


def freed_graph(x: Tensor, w: Tensor) -> Any:
    loss = w.sin().sum()
    return grad(loss, w), grad(loss, w)


def nothing_requires_grad(x: Tensor, w: Tensor) -> Any:
    return grad(x.sum(), w)


def stale_value(x: Tensor, w: Tensor) -> Any:
    y = w.exp()
    loss = (y * y).sum()
    y.mul_(2)
    return grad(loss, w)


@named([unconnected, freed_graph, nothing_requires_grad, stale_value])
def test_errors_are_eagers(function: Function) -> None:
    messages = []
    for called in (function, jit(function)):
        with pytest.raises(RuntimeError) as caught:
            called(*x_and_w())
        messages.append(str(caught.value).partition("[")[0])
    assert messages[0] == messages[1]


def graph_edge(x: Tensor, w: Tensor) -> Any:
    return grad(w.sum(), torch.autograd.graph.get_gradient_edge(w))


def leaf_returned(x: Tensor, w: Tensor) -> Any:
    return x.clone().requires_grad_() * 2


def input_told_to_require_grad(x: Tensor, w: Tensor) -> Any:
    return x * 3 + x.requires_grad_() * 2


def input_told_not_to(x: Tensor, w: Tensor) -> Any:
    w.requires_grad = False
    return w * 2


def sg_grad_in_vmap(x: Tensor, w: Tensor) -> Any:
    return func.vmap(lambda row: sg.grad(loss_of)(row))(x)


def test_same_numbers_for_every_chunk() -> None:
    def same_numbers_for_every_chunk(x: Tensor) -> Any:
        return func.vmap(lambda row: row + torch.rand(3), chunk_size=2, randomness="same")(x)

    assert_falls_back(same_numbers_for_every_chunk, lambda: (numbers(6, 3),), "random stream is seeded")


@pytest.mark.parametrize(
    "function", [after_a_write_that_autograd_did_not_see, view_written_after_it_was_told, adversarial_steps]
)
def test_writes_that_autograd_does_not_see_to_what_is_no_input(function: Function) -> None:
    assert_falls_back(function, x_and_w, "written to where autograd does not see it")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (graph_edge, r"reads \.grad_fn"),
        (leaf_returned, r"requires_grad_\(\).*detached"),
        (input_told_to_require_grad, r"requires_grad.*outside"),
        (input_told_not_to, r"requires_grad.*outside"),
        (sg_grad_in_vmap, r"sg inside a torch\.func transform"),
    ],
)
def test_refused_with_a_clear_error(function: Function, message: str) -> None:
    with pytest.raises(errors.Unsupported, match=message):
        sg.jit(function, executors=["torch"], strict=True)(*x_and_w())


@pytest.mark.parametrize("create_graph", [False, True])
def test_history_outside_is_not_passed_over(create_graph: bool) -> None:
    def product(x: Tensor, z: Tensor) -> Tensor:
        return grad((x * z).sum(), x, create_graph=create_graph)[0]

    x, jitted = numbers(3, grad=True), jit(product)
    independent = numbers(3).requires_grad_()
    assert_same(jitted(x, independent), product(x, independent))
    with falls_back(r"t_1.*computed outside"):
        for start in (x, independent):
            assert_same(jitted(x, start * 2), product(x, start * 2))
    assert_same(jitted(x * 1, independent), product(x * 1, independent))


def test_history_outside_is_not_passed_over_in_a_nested_derivative() -> None:
    held = numbers(3, grad=True)

    def nested(x: Tensor, z: Tensor) -> Any:
        return sg.grad(lambda y: grad((y * z * held).sum(), held)[0].sum() + (y * y).sum())(x)

    x, jitted = numbers(3).requires_grad_(), jit(nested)
    assert_same(jitted(x, numbers(3).requires_grad_()).detach(), 2 * x.detach())
    with fallbacks_recorded() as reasons:
        jitted(x, held * 2)
    assert reasons
    assert all("computed outside" in reason for _, reason in reasons)


@pytest.mark.parametrize("make", [torch.zeros_like, lambda x, **options: x.new_ones(3, **options)])
def test_what_a_factory_makes_requires_grad_where_it_is_told_to(make: Callable[..., Tensor]) -> None:
    jitted = jit(lambda x: make(x, requires_grad=True) * 2)
    with falls_back(r"requires_grad_\(\)"):
        assert jitted(torch.ones(3)).requires_grad
