"""The grad pass: which of its steps differentiates a bound symbol, and what the backward is made of."""

from __future__ import annotations

import importlib
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutput

import switchgear as sg
from switchgear.errors import NotDifferentiable
from switchgear_core.ir.symbol import BACKWARD, CHECKPOINT
from switchgear_core.registry.plugins import load
from tests.core.made_up import Site, rules_plugin
from tests.core.training import (
    Kernel,
    backward,
    choice,
    executor,
    forward,
    joint,
    leaf,
    lines,
    operators,
    owners,
    rules,
)
from tests.oracle import assert_same, assert_trains_as_eager, step

COMPOSITE, LEAF = "torch.sin", "aten.sin.default"


def scaled(factor: float) -> Callable[[Tensor], Any]:
    """A rule for `torch.sin` that is told by its gradient."""

    def rule(x: Tensor) -> Any:
        return torch.sin(x), lambda grad: grad * factor

    return rule


def sine(x: Tensor) -> Tensor:
    return torch.sin(x)


def gradient(**options: Any) -> tuple[float, Any]:
    """The gradient of `sine` at one number, and the jitted function."""
    options.setdefault("executors", ["torch"])
    jitted = sg.jit(sine, **options)
    x = torch.tensor(0.5, requires_grad=True)
    jitted(x).backward()
    assert x.grad is not None
    return x.grad.item(), jitted


@pytest.fixture
def install(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make these plugins, by name, all that is installed beside the torch executor."""

    def only(**plugins: str) -> None:
        core = importlib.import_module("switchgear_core.registry.plugins")
        found = load([*core.entry_points(group="switchgear"), *(site.add(n, s) for n, s in plugins.items())])
        monkeypatch.setattr(importlib.import_module("switchgear.jitting"), "installed", lambda *listed: found)

    return only


# The order: constant, grad rule, decomposition, derived rule, error.


def fail(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a constant is not to be differentiated")


def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = torch.sin(x)
    return x * y


@pytest.mark.parametrize(
    ("function", "target", "reason"),
    [
        (lambda x: torch.argmax(x) * x, torch.argmax, "no output is differentiable"),
        (lambda x: torch.sin(torch.ones(3)) * x, torch.sin, "no input requires grad"),
        (under_no_grad, torch.sin, "grad mode is off"),
    ],
)
def test_constants_come_before_rules(function: Any, target: Any, reason: str) -> None:
    table = sg.Table("mine")
    table.grad_rule(target)(fail)
    jitted = assert_trains_as_eager(function, leaf(3), grad_rules=table)
    found = choice(jitted, "gradient", f"torch.{target.__name__}")
    assert (found.owner, found.reason) == ("constant", reason)


def test_rule_comes_before_decomposition() -> None:
    grad, jitted = gradient(grad_rules=rules(torch.sin, scaled(2)))
    assert grad == 2
    assert owners(jitted, "gradient") == {COMPOSITE: "mine"}
    assert choice(jitted, "gradient", COMPOSITE).reason == "pullback rule"


def test_rule_for_a_composite_comes_before_one_for_its_leaf() -> None:
    high = executor("high", rules={torch.ops.aten.sin.default: scaled(2)})
    low = executor("low", rules={torch.sin: scaled(3)})
    assert gradient(executors=[high, low, "torch"])[0] == 3


def test_decomposition_is_offered_to_rules_for_leaves() -> None:
    grad, jitted = gradient(grad_rules=rules(torch.ops.aten.sin.default, scaled(2)))
    assert grad == 2
    assert owners(jitted, "gradient") == {COMPOSITE: "decomposition", LEAF: "mine"}


def test_declined_rule_leaves_the_decomposition() -> None:
    table = sg.Table("mine")
    table.grad_rule(torch.sin, lambda bound_symbol: "only on Sundays")(fail)
    grad, jitted = gradient(grad_rules=table)
    assert grad == torch.cos(torch.tensor(0.5)).item()
    assert owners(jitted, "gradient") == {COMPOSITE: "decomposition", LEAF: "derived"}
    assert choice(jitted, "gradient", COMPOSITE).declined[0] == ("mine", "only on Sundays")


def test_derived_rule_is_the_last_resort() -> None:
    _, jitted = gradient()
    assert choice(jitted, "gradient", LEAF).owner == "derived"
    assert choice(jitted, "gradient", LEAF).declined == (("torch", f"no grad rule for {LEAF}"),)


@torch.library.custom_op("switchgear_test_differentiate::no_formula", mutates_args=())
def no_formula(x: Tensor) -> Tensor:
    return x.clone()


@no_formula.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_nobody_differentiates() -> None:
    with pytest.raises(NotDifferentiable, match=r"no gradient for switchgear_test_differentiate\.no_formula\.default"):
        sg.jit(lambda x: no_formula(x) * 2, executors=["torch"], fallback="error")(leaf(3))
    assert_same(sg.jit(no_formula, executors=["torch"])(torch.ones(3)), torch.ones(3))


def test_rule_makes_the_undifferentiable_differentiable() -> None:
    table = rules(no_formula, lambda x: (no_formula(x), lambda grad: grad * 3))
    x = leaf(3)
    sg.jit(lambda x: no_formula(x).sum(), executors=["torch"], grad_rules=table)(x).backward()
    assert_same(x.grad, torch.full((3,), 3.0))


# Ties.


def test_rules_of_the_call_in_their_order_then_executors_in_theirs_then_packages(install: Any) -> None:
    install(**{name: rules_plugin(name).replace("torch.cos(x)", f) for name, f in (("package", "50"), ("early", "60"))})
    one, two = (rules(torch.sin, scaled(factor), owner) for factor, owner in ((1, "one"), (2, "two")))
    three, four = (executor(name, rules={torch.sin: scaled(factor)}) for factor, name in ((3, "three"), (4, "four")))
    assert gradient(executors=[three, four, "torch"], grad_rules=[one, two])[0] == 1
    assert gradient(executors=[three, four, "torch"], grad_rules=[two, one])[0] == 2
    assert gradient(executors=[three, four, "torch"])[0] == 3
    assert gradient(executors=[four, "torch", three])[0] == 4
    assert gradient(executors=["torch", four])[0] == 4
    assert gradient(executors=["torch", "package", "early"])[0] == 50
    assert gradient(executors=["torch", "early", "package"])[0] == 60
    assert gradient(executors=["package", three, "torch"])[0] == 50
    assert gradient(executors=None)[0] == 60
    assert gradient(executors=["torch"])[0] == torch.cos(torch.tensor(0.5)).item()


def test_packages_of_rules_by_priority_then_name(install: Any) -> None:
    sources = {name: rules_plugin(name).replace("torch.cos(x)", f) for name, f in (("a", "10"), ("b", "20"))}
    install(**sources, c=rules_plugin("c", priority=1).replace("torch.cos(x)", "30"))
    grad, jitted = gradient(executors=None)
    assert (grad, owners(jitted, "gradient")[COMPOSITE]) == (30, "c")
    install(b=sources["b"], a=sources["a"])
    assert gradient(executors=None)[0] == 10


def test_executor_without_a_rule_does_not_hide_the_rule_of_the_next() -> None:
    kernel = Kernel(torch.sin)
    grad, jitted = gradient(
        executors=[executor("fast", {torch.sin: kernel}), executor("right", rules={torch.sin: scaled(7)}), "torch"]
    )
    assert (grad, kernel.calls) == (7, 1)
    assert owners(jitted, "gradient")[COMPOSITE] == "right"
    assert owners(jitted, "execution")[COMPOSITE] == "fast"


def test_rule_of_a_call_does_not_leak_into_another() -> None:
    assert gradient(grad_rules=rules(torch.sin, scaled(2)))[0] == 2
    assert gradient()[0] == torch.cos(torch.tensor(0.5)).item()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_order_of_declaration_changes_nothing(order: tuple[int, ...]) -> None:
    made = {index: executor("abc"[index], rules={torch.sin: scaled(index + 1)}) for index in order}
    assert gradient(executors=[made[1], made[0], made[2], "torch"])[0] == 2


@pytest.mark.parametrize(
    "spelling", [lambda x: x * 3, lambda x: torch.mul(x, 3), lambda x: x.mul(3), lambda x: x.__mul__(3)]
)
def test_rule_holds_for_every_spelling(spelling: Any) -> None:
    table = rules(torch.mul, lambda x, y: (torch.mul(x, y), lambda grad: grad * 100))
    x = leaf(2)
    sg.jit(spelling, executors=["torch"], grad_rules=table)(x).sum().backward()
    assert_same(x.grad, torch.full((2,), 100.0))


# requires_grad.


def mixture(x: Tensor, y: Tensor) -> list[Tensor]:
    values, indices = torch.topk(x, 2)
    with torch.no_grad():
        off = x * 2
    with torch.no_grad(), torch.enable_grad():
        on = x * 3
    again = off * y
    parts = [part + 1 for part in torch.unbind(x.reshape(2, 2))]
    written = torch.zeros(4)
    written[0] = x[0]
    return [
        values,
        indices,
        off,
        on,
        again,
        x.detach() * 2,
        x.detach() + x,
        y * 2,
        x > 0,
        written,
        *parts,
        x.long(),
        x + y,
    ]


def test_requires_grad_is_eagers_on_every_proxy() -> None:
    x, y = leaf(4), torch.randn(4)
    jitted = sg.jit(mixture, executors=["torch"])
    got, wanted = jitted(x, y), mixture(x, y)
    assert [tensor.requires_grad for tensor in got] == [tensor.requires_grad for tensor in wanted]
    for trace in sg.last_traces(jitted):
        made = {proxy.name: proxy for item in lines(trace) for proxy in item.outputs}
        outputs = [made.get(proxy.name, proxy) for proxy in trace.outputs[: len(wanted)] if proxy is not None]
        assert [proxy.requires_grad for proxy in outputs] == [tensor.requires_grad for tensor in wanted]
        assert [proxy.requires_grad for proxy in trace.inputs[:2]] == [True, False]


def test_rule_does_not_blur_requires_grad() -> None:
    table = rules(torch.topk, lambda x, k: (tuple(torch.topk(x, k)), lambda grad, _: torch.ones_like(x) * grad.sum()))
    x = leaf(5)
    jitted = sg.jit(lambda x: torch.topk(x, 2), executors=["torch"], grad_rules=table)
    values, indices = jitted(x)
    assert (values.requires_grad, indices.requires_grad) == (True, False)
    assert_same(indices, torch.topk(x, 2).indices)
    values.sum().backward()
    assert_same(x.grad, torch.full((5,), 2.0))


def mlp(*sizes: int) -> nn.Sequential:
    layers = [layer for i, o in itertools.pairwise(sizes) for layer in (nn.Linear(i, o), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def model_step(model: nn.Module, function: Any, x: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    function(x).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_frozen_layers_are_not_differentiated() -> None:
    model = mlp(4, 5, 6, 7)
    model[:4].requires_grad_(False)
    jitted = sg.jit(model, executors=["torch"])
    x = torch.randn(3, 4)
    assert_same(model_step(model, jitted, x), model_step(model, model, x))
    modules = {
        link.forward.source.module for item in lines(backward(jitted)) for link in item.links if link.forward.source
    }
    assert modules == {"4"}
    assert operators(backward(jitted)).count("aten.mm.default") == 1
    assert [proxy.shape for proxy in backward(jitted).inputs] == [(3, 6), (3, 7)]
    differentiated = [c.symbol for c in sg.last_choices(jitted) if c.kind == "gradient" and c.owner == "derived"]
    assert sorted(differentiated) == ["aten.addmm.default", "aten.t.default"]


def test_frozen_layer_in_the_middle_is_passed_through() -> None:
    model = mlp(4, 5, 6, 7)
    model[2].requires_grad_(False)
    jitted = sg.jit(model, executors=["torch"])
    x = torch.randn(3, 4)
    assert_same(model_step(model, jitted, x), model_step(model, model, x))
    # a weight each for the first and the last layer; through the second and the third
    assert operators(backward(jitted)).count("aten.mm.default") == 4
    assert operators(backward(jitted)).count("aten.sum.dim_IntList") == 2


@pytest.mark.parametrize("wanted", [(0,), (1,), (1, 0)])
def test_gradients_of_some_inputs(wanted: tuple[int, ...]) -> None:
    inputs = leaf(3, 4), leaf(4, 5)
    chosen = [inputs[index] for index in wanted]
    jitted = sg.jit(torch.matmul, executors=["torch"])
    got = torch.autograd.grad(jitted(*inputs).sum(), chosen)
    assert_same(got, torch.autograd.grad(torch.matmul(*inputs).sum(), chosen))


# What is undefined stays so.


def test_zeros_are_not_made_for_an_unused_output() -> None:
    def mean(x: Tensor) -> Tensor:
        return torch.var_mean(x, 1)[1]

    jitted = assert_trains_as_eager(mean, leaf(4, 5))
    made = operators(backward(jitted))
    assert not [name for name in made if "zero" in name or "full" in name]
    assert not [name for name in made if "sub" in name], "part of the gradient of the variance"


def test_output_that_gets_no_gradient_costs_nothing() -> None:
    def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sin(x), torch.exp(y)

    jitted = assert_trains_as_eager(two, leaf(3), leaf(3), weigh=lambda result: result[0])
    assert operators(backward(jitted)) == ["aten.cos.default", "aten.mul.Tensor"]
    jitted = assert_trains_as_eager(two, leaf(3), leaf(3), weigh=lambda result: result[1])
    assert operators(backward(jitted)) == ["aten.mul.Tensor"]
    assert_trains_as_eager(two, leaf(3), leaf(3))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x * 2,
        lambda x, y: x * 2 + y.detach(),
        lambda x, y: x * 2 + torch.argmax(y),
        lambda x, y: (x * 2, y.detach()),
        lambda x, y: (x * 2, y),
        lambda x, y: x * torch.zeros_like(y),
        lambda x, y: x + torch.ones(y.shape),
    ],
)
def test_unused_inputs_get_none(function: Any) -> None:
    weigh = lambda result: result[0] if isinstance(result, tuple) else result  # noqa: E731
    jitted = assert_trains_as_eager(function, leaf(3), leaf(3), weigh=weigh)
    assert step(jitted, leaf(3), leaf(3), weigh=weigh)[1][1] is None


def test_used_input_with_a_zero_gradient_gets_zeros() -> None:
    jitted = assert_trains_as_eager(lambda x, y: x + y * 0, leaf(3), leaf(3))
    assert_same(step(jitted, leaf(3), leaf(3))[1][1], torch.zeros(3))


def test_loss_of_a_model_output() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 5)
            self.head = nn.Linear(5, 6)

        def forward(self, x: Tensor, labels: Tensor) -> CausalLMOutput:
            hidden = torch.tanh(self.inner(x))
            logits = self.head(hidden)
            return CausalLMOutput(loss=F.cross_entropy(logits, labels), logits=logits, hidden_states=(hidden,))

    model, x, labels = Model(), torch.randn(3, 4), torch.tensor([0, 5, 2])
    jitted = sg.jit(model, executors=["torch"])
    wanted = model(x, labels)
    wanted.loss.backward()
    grads = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    got = jitted(x, labels)
    assert isinstance(got, CausalLMOutput)
    assert list(got) == list(wanted)
    got.loss.backward()
    assert_same([p.grad for p in model.parameters()], grads)
    assert_same(got.logits, wanted.logits)
    # the gradients of logits and hidden states are undefined: what is there comes from the loss
    assert [proxy.shape for proxy in backward(jitted).inputs][-1:] == [()]
    assert got.hidden_states[0].grad_fn is not None


# Grad outputs of any layout.

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda g: g.t().contiguous().t(),
    "expanded": lambda g: g[:1].expand(4, 4),
    "one number": lambda g: g[0, 0].expand(4, 4),
    "strided": lambda g: torch.stack([g, g], -1)[..., 0],
    "offset": lambda g: torch.cat([g, g])[2:6],
    "sliced columns": lambda g: torch.cat([g, g], 1)[:, 2:6],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_grad_output_of_another_layout(layout: str) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.softmax(x @ w, -1).view(4, 4) * x

    jitted = sg.jit(function, executors=["torch"])
    x, w, g = leaf(4, 4), leaf(4, 4), torch.randn(4, 4)
    for make in (LAYOUTS[layout], Tensor.clone, LAYOUTS[layout]):
        got = torch.autograd.grad(jitted(x, w), [x, w], make(g))
        assert_same(got, torch.autograd.grad(function(x, w), [x, w], make(g)))


def test_grad_output_of_another_layout_reaches_rules_of_every_form() -> None:
    for declare in FORMS:
        table = sg.Table("mine")
        declare(table)
        x = leaf(4, 4)
        jitted = sg.jit(torch.tanh, executors=["torch"], grad_rules=table)
        for make in LAYOUTS.values():
            g = torch.randn(4, 4)
            (got,) = torch.autograd.grad(jitted(x), [x], make(g))
            torch.testing.assert_close(got, torch.autograd.grad(torch.tanh(x), [x], make(g))[0])


def pullback_form(table: sg.Table) -> None:
    @table.grad_rule(torch.tanh)
    def rule(x: Tensor) -> Any:
        y = torch.tanh(x)
        return y, lambda grad: (grad.reshape(-1) * (1 - y * y).reshape(-1)).view(x.shape)


def transform_form(table: sg.Table) -> None:
    @table.grad_transform(torch.tanh)
    def rule(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        sg.put_grad(x, (sg.get_grad(y).view(-1) * (1 - y * y).view(-1)).view(x.shape))
        return y


def augmented_form(table: sg.Table) -> None:
    def ahead(x: Tensor) -> Any:
        y = torch.tanh(x)
        return y, (y,)

    table.augmented(torch.tanh, forward=ahead, backward=lambda y, grad: grad * (1 - y * y))


FORMS = (pullback_form, transform_form, augmented_form)


def test_conjugated_grad_output() -> None:
    x, g = leaf(3, dtype=torch.complex64), torch.randn(3, dtype=torch.complex64)
    jitted = sg.jit(lambda x: x * x, executors=["torch"])
    for make in (torch.conj, lambda g: torch.view_as_real(g).neg().view(3, 2)[:, 0].to(torch.complex64)):
        assert_same(torch.autograd.grad(jitted(x), [x], make(g)), torch.autograd.grad(x * x, [x], make(g)))


def test_channels_last_gradients() -> None:
    x = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    w = leaf(4, 3, 3, 3)
    jitted = assert_trains_as_eager(lambda x, w: F.conv2d(x, w).relu().mean(), x, w)
    got, wanted = step(jitted, x, w)[1], step(lambda x, w: F.conv2d(x, w).relu().mean(), x, w)[1]
    assert [g.stride() for g in got if g is not None] == [g.stride() for g in wanted if g is not None]


# Several backwards.


def test_retain_graph_twice() -> None:
    def function(x: Tensor) -> Tensor:
        return (torch.exp(x) * x).sum()

    results = []
    for call in (sg.jit(function, executors=["torch"]), function):
        torch.manual_seed(0)
        x = leaf(4)
        y = call(x)
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
        y.backward()
        results.append(x.grad)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.backward()
    assert_same(*results)


def test_backward_of_each_output_in_turn() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.exp(x)
        return y * 2, y.sin()

    jitted, x = sg.jit(function, executors=["torch"]), leaf(3)
    for first, second in ((0, 1), (1, 0)):
        got, wanted = jitted(x), function(x)
        for index in (first, second):
            grads = [
                torch.autograd.grad(outputs[index].sum(), [x], retain_graph=index == first) for outputs in (got, wanted)
            ]
            assert_same(*grads)


# Accumulation.


def many_uses(x: Tensor) -> Tensor:
    total = torch.sin(x) * x
    for index in range(12):
        total = total + torch.cos(x * (index + 0.1)) / (x + 30) + x[:, [index % 4]] * x.t().sum()
    return total * x + torch.cat([x[:2], x[2:]]) + torch.where(x > 0, x, x * x)


def test_many_uses_of_one_tensor_are_summed_in_eagers_order() -> None:
    assert_trains_as_eager(many_uses, leaf(4, 4))
    assert_trains_as_eager(lambda x: many_uses(torch.exp(x) / 3), leaf(4, 4))


UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.sin, torch.tanh, torch.sigmoid, torch.t, lambda x: x * 1.7, lambda x: x.softmax(-1), F.gelu,
    lambda x: x.reshape(16).view(4, 4), lambda x: x[:, [3, 1, 1, 0]], lambda x: x.cumsum(0),
    lambda x: F.layer_norm(x, (4,)), lambda x: x.expand(2, 4, 4).sum(0), lambda x: x.detach() + x,
    lambda x: x.mean(1, keepdim=True).expand(4, 4), lambda x: x.clone().mul_(0.3),
]  # fmt: skip
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    torch.add, torch.sub, torch.mul, torch.matmul, torch.maximum, lambda x, y: torch.cat([x[:2], y[2:]]),
    lambda x, y: torch.where(x > y, x, y), lambda x, y: x + y[0], lambda x, y: torch.stack([x, y, x]).mean(0), F.linear,
]  # fmt: skip


def random_program(seed: int) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """A function of two 4 by 4 tensors that uses what it made again and again."""

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        draw = random.Random(seed)
        values = [x, y]
        for _ in range(14):
            if draw.random() < 0.5:
                values.append(draw.choice(UNARY)(draw.choice(values)))
            else:
                values.append(draw.choice(BINARY)(draw.choice(values), draw.choice(values)))
        return draw.sample(values[2:], 3)

    return program


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_are_bit_equal(seed: int) -> None:
    assert_trains_as_eager(random_program(seed), leaf(4, 4), leaf(4, 4))


def test_output_returned_twice_and_used_further() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.exp(x)
        return y, y * x, y, y.sum() * 3

    assert_trains_as_eager(function, leaf(3))


def test_same_leaf_twice_in_one_call() -> None:
    x = leaf(3)
    got = sg.jit(lambda x, y: x * y.sin(), executors=["torch"])(x, x)
    assert_same(torch.autograd.grad(got.sum(), [x]), torch.autograd.grad((x * x.sin()).sum(), [x]))


def test_gradients_of_inputs_that_are_no_leaves() -> None:
    jitted = sg.jit(torch.sin, executors=["torch"])
    x = leaf(3)
    assert_same(
        torch.autograd.grad(jitted(jitted(x * 2)).sum(), [x]), torch.autograd.grad((x * 2).sin().sin().sum(), [x])
    )


def test_names_of_parameters_do_not_collide_with_those_of_the_pass() -> None:
    class Awkward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("g_t1", "t0", "t_0", "_0", "0", "args", "torch"):
                self.register_parameter(name, nn.Parameter(torch.randn(3)))
            self.g = nn.ParameterDict({"t1": torch.randn(3)})

        def forward(self, x: Tensor) -> Tensor:
            for parameter in self.parameters():
                x = x * parameter + parameter.sin()
            return x

    model, x = Awkward(), torch.randn(3)
    jitted = sg.jit(model, executors=["torch"])
    assert_same(model_step(model, jitted, x), model_step(model, model, x))


def test_tags_of_user_checkpoints_are_kept() -> None:
    def function(x: Tensor) -> Tensor:
        return checkpoint(lambda x: torch.sin(torch.exp(x)), x * 2, use_reentrant=False) * 3  # type: ignore[no-any-return]

    jitted = assert_trains_as_eager(function, leaf(3))
    tagged = [
        item.symbol.name for item in lines(joint(jitted)) if BACKWARD not in item.tags and f"{CHECKPOINT}0" in item.tags
    ]
    assert tagged == ["aten.exp.default", "aten.sin.default"]


def test_nothing_is_differentiated_when_nobody_asks() -> None:
    jitted = sg.jit(sine, executors=["torch"], grad_rules=rules(torch.sin, fail))
    assert not jitted(torch.ones(3)).requires_grad
    assert operators(forward(jitted)) == [COMPOSITE]
    with torch.no_grad():
        assert not jitted(leaf(3)).requires_grad
    assert sg.last_backward_traces(jitted) == ()
