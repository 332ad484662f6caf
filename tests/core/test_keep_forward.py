"""A forward that an executor claims and nobody brings a rule for: it runs in training, never silently dropped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from switchgear.errors import StrictError
from switchgear_core.ir.symbol import RECOMPUTED
from tests.core.training import (
    Kernel,
    backward,
    choice,
    executor,
    forward,
    leaf,
    line_of,
    lines,
    operators,
    owners,
    rules,
)
from tests.oracle import assert_same, assert_trains_as_eager, step


def aten_gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return torch.ops.aten.gelu(x, approximate=approximate)  # type: ignore[no-any-return]


def model(x: Tensor) -> Tensor:
    y = F.gelu(x * 2)  # the user's line
    return y * x


def test_kernel_runs_once_and_the_gradients_are_eagers() -> None:
    kernel = Kernel(aten_gelu)
    jitted = sg.jit(model, executors=[executor("fast", {F.gelu: kernel}), "torch"])
    x = leaf(3, 4)
    assert_same(step(jitted, x), step(model, x))
    assert kernel.calls == 1
    assert "torch.nn.functional.gelu" in operators(forward(jitted))
    assert "torch.nn.functional.gelu" not in operators(backward(jitted))


def test_choices_say_so() -> None:
    jitted = sg.jit(model, executors=[executor("fast", {F.gelu: aten_gelu}), "torch"])
    step(jitted, leaf(3))
    found = choice(jitted, "gradient", "torch.nn.functional.gelu")
    assert found.owner == "decomposition"
    assert found.reason == "fast keeps the forward, the backward recomputes the values it needs"
    assert ("fast", "no grad rule for torch.nn.functional.gelu") in found.declined
    assert choice(jitted, "execution", "torch.nn.functional.gelu").owner == "fast"
    assert found.reason in str(sg.explain(jitted).gradients())


def test_value_is_the_kernels_and_gradient_the_decompositions() -> None:
    jitted = sg.jit(F.gelu, executors=[executor("tenfold", {F.gelu: lambda x: aten_gelu(x) * 10}), "torch"])
    x = leaf(5)
    result, grads = step(jitted, x)
    wanted, wanted_grads = step(F.gelu, x)
    assert_same(result.detach(), wanted.detach() * 10)
    assert_same(grads, wanted_grads)


def test_forward_saves_what_the_kernel_took_and_the_backward_recomputes_the_rest() -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)

    kernel = Kernel(lambda logits, labels, *args, **kwargs: -logits.log_softmax(1).gather(1, labels[:, None]).mean())
    jitted = sg.jit(loss, executors=[executor("fast", {F.cross_entropy: kernel}), "torch"])
    inputs = leaf(5, 3), torch.tensor([0, 2, 1, 1, 0])
    result, grads = step(jitted, *inputs)
    wanted, wanted_grads = step(loss, *inputs)
    torch.testing.assert_close(result, wanted)
    assert_same(grads, wanted_grads)
    assert kernel.calls == 1
    assert operators(forward(jitted)) == ["torch.nn.functional.cross_entropy"]
    saved = {proxy.name for proxy in forward(jitted).outputs[1:] if proxy is not None}
    assert saved == {proxy.name for proxy in forward(jitted).inputs}
    recomputed = [item.symbol.name for item in lines(backward(jitted)) if RECOMPUTED in item.tags]
    assert "aten._log_softmax.default" in recomputed


def test_every_line_of_the_backward_belongs_to_the_kept_forward() -> None:
    def function(x: Tensor) -> Tensor:
        return F.softmax(x, -1)

    def softmax(x: Tensor, dim: int, **kwargs: Any) -> Tensor:
        return torch.ops.aten._softmax(x, dim, False)  # type: ignore[no-any-return]

    jitted = sg.jit(function, executors=[executor("fast", {F.softmax: softmax}), "torch"])
    x = leaf(3, 4)
    assert_same(step(jitted, x), step(function, x))
    assert "aten._softmax.default" in operators(backward(jitted))
    # once: what is recomputed has no link
    for item in lines(backward(jitted)):
        assert [link.forward.symbol.name for link in item.links] == ["torch.nn.functional.softmax"]


def test_linear_layers_of_a_model() -> None:
    kernel = Kernel(F.linear)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    jitted = sg.jit(net, executors=[executor("fast", {F.linear: kernel}), "torch"])
    x, grads = torch.randn(5, 3), []
    for call in (jitted, net):
        net.zero_grad()
        call(x).square().sum().backward()
        grads.append([parameter.grad for parameter in net.parameters()])
    assert_same(*grads)
    assert kernel.calls == 2


def test_linear_inside_attention_written_in_python() -> None:
    kernel = Kernel(F.linear)
    net = nn.MultiheadAttention(4, 2, batch_first=True)
    jitted = sg.jit(net, executors=[executor("fast", {F.linear: kernel}), "torch"])
    x, grads = torch.randn(2, 3, 4), []
    for call in (jitted, net):
        net.zero_grad()
        call(x, x, x)[0].square().sum().backward()
        grads.append([parameter.grad for parameter in net.parameters()])
    torch.testing.assert_close(*grads)
    assert kernel.calls > 0


def test_several_outputs_of_which_one_is_differentiable() -> None:
    kernel = Kernel(lambda x, k: tuple(torch.ops.aten.topk(x, k)))
    jitted = sg.jit(lambda x: torch.topk(x, 2), executors=[executor("fast", {torch.topk: kernel}), "torch"])
    x = leaf(5)
    (values, indices), grads = step(jitted, x)
    wanted, wanted_grads = step(lambda x: torch.topk(x, 2), x)
    assert_same([values, indices, grads], [*wanted, wanted_grads])
    assert kernel.calls == 1
    assert not indices.requires_grad


def test_unused_output_and_unused_call() -> None:
    kernel = Kernel(lambda x, *args, **kwargs: torch.ops.aten.unbind(x))
    fast = executor("fast", {torch.unbind: kernel})
    jitted = assert_trains_as_eager(lambda x: torch.unbind(x)[1] * 2, leaf(2, 3), executors=[fast, "torch"])
    assert kernel.calls == 2
    gelu = Kernel(aten_gelu)
    jitted = sg.jit(lambda x: (F.gelu(x), x * 2)[1], executors=[executor("fast", {F.gelu: gelu}), "torch"])  # type: ignore[misc]
    step(jitted, leaf(3))
    assert gelu.calls == 0


def test_kept_twice_in_a_row() -> None:
    kernel = Kernel(aten_gelu)
    jitted = sg.jit(lambda x: F.gelu(F.gelu(x) + x), executors=[executor("fast", {F.gelu: kernel}), "torch"])
    x = leaf(4)
    assert_same(step(jitted, x), step(lambda x: F.gelu(F.gelu(x) + x), x))
    assert kernel.calls == 2


def test_leaf_keeps_its_forward_with_the_derived_rule() -> None:
    kernel = Kernel(torch.mm)
    jitted = sg.jit(lambda x, y: x @ y, executors=[executor("fast", {torch.ops.aten.mm.default: kernel}), "torch"])
    x, y = leaf(3, 4), leaf(4, 2)
    assert_same(step(jitted, x, y), step(torch.mm, x, y))
    # one for the forward, two for the backward
    assert kernel.calls == 3
    assert choice(jitted, "gradient", "aten.mm.default").owner == "derived"


def test_derivatives_of_derivatives() -> None:
    kernel = Kernel(aten_gelu)
    options: dict[str, Any] = {"executors": [executor("fast", {F.gelu: kernel}), "torch"]}
    got, wanted, x = F.gelu, F.gelu, torch.tensor(0.3, dtype=torch.float64)
    for _ in range(3):
        got, wanted = sg.grad(got, **options), torch.func.grad(wanted)
        torch.testing.assert_close(got(x), wanted(x))
    value, _ = sg.value_and_grad(F.gelu, **options)(x)
    assert_same(value, F.gelu(x))
    assert kernel.calls > 0


def test_rule_of_another_keeps_it_too() -> None:
    kernel = Kernel(aten_gelu)
    table = rules(F.gelu, lambda x: (F.gelu(x), lambda grad: grad * 5))
    fast = executor("fast", {F.gelu: kernel})
    x = leaf(3)
    jitted = sg.jit(lambda x: F.gelu(x), executors=[fast, "torch"], grad_rules=table)
    assert_same(step(jitted, x)[1], [torch.full((3,), 5.0)])
    assert kernel.calls == 1


# strict


def test_strict_refuses_to_derive() -> None:
    jitted = sg.jit(model, executors=[executor("fast", {F.gelu: aten_gelu}), "torch"], strict=True)
    with pytest.raises(StrictError) as caught:
        jitted(leaf(3))
    for part in ("fast claims torch.nn.functional.gelu", line_of(model, "user's line"), "grad rule", "strict=True"):
        assert part in str(caught.value)
    assert_same(jitted(torch.ones(3)), model(torch.ones(3)))


def test_strict_refuses_to_derive_for_a_leaf() -> None:
    # once: only composites are looked at
    fast = executor("fast", {torch.ops.aten.gelu.default: aten_gelu})
    with pytest.raises(StrictError, match=r"fast claims aten\.gelu\.default"):
        sg.jit(model, executors=[fast, "torch"], strict=True)(leaf(3))


def test_strict_is_content_with_a_rule() -> None:
    rule = {F.gelu: lambda x: (F.gelu(x), lambda grad: grad * 5)}
    fast = executor("fast", {F.gelu: aten_gelu})
    for options in (
        {"executors": [executor("fast", {F.gelu: aten_gelu}, rule), "torch"]},
        {"executors": [fast, executor("other", rules=rule), "torch"]},
        {"executors": [fast, "torch"], "grad_rules": rules(F.gelu, rule[F.gelu])},
        {"executors": ["torch"]},
    ):
        step(sg.jit(model, strict=True, **options), leaf(3))


# A decomposition that draws random numbers.


def drop(x: Tensor) -> Tensor:
    y = F.dropout(x * 2, 0.5)  # the user's line
    return y * x


def test_random_decomposition_is_not_claimed_in_training() -> None:
    kernel = Kernel(lambda x, *args, **kwargs: x * 0)
    jitted = sg.jit(drop, executors=[executor("fast", {F.dropout: kernel}), "torch"])
    x = leaf(64)
    assert_same(step(jitted, x), step(drop, x))
    assert kernel.calls == 0
    found = choice(jitted, "gradient", "torch.nn.functional.dropout")
    assert found.owner == "decomposition"
    assert "draws random numbers" in found.reason
    assert ("fast", found.reason) in found.declined
    assert found.reason in str(sg.explain(jitted).gradients())
    # nobody is to be asked again for a part of it either
    assert "fast" not in owners(jitted, "execution").values()


def test_random_decomposition_is_claimed_where_nothing_requires_grad() -> None:
    kernel = Kernel(lambda x, *args, **kwargs: x * 0)
    jitted = sg.jit(drop, executors=[executor("fast", {F.dropout: kernel}), "torch"])
    assert_same(jitted(torch.ones(3)), torch.zeros(3))
    with torch.no_grad():
        assert_same(jitted(leaf(3)), torch.zeros(3))
    assert kernel.calls == 2


def test_random_decomposition_under_strict() -> None:
    jitted = sg.jit(drop, executors=[executor("fast", {F.dropout: drop}), "torch"], strict=True)
    with pytest.raises(StrictError, match=r"fast claims torch\.nn\.functional\.dropout"):
        jitted(leaf(3))


def test_random_kernel_with_a_rule_is_claimed() -> None:
    kernel = Kernel(lambda x, *args, **kwargs: torch.zeros_like(x))

    def rule(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return F.dropout(x, 0.5), lambda grad: grad * 7

    jitted = sg.jit(F.dropout, executors=[executor("fast", {F.dropout: kernel}, {F.dropout: rule}), "torch"])
    result, grads = step(jitted, leaf(3))
    assert_same([result.detach(), grads], [torch.zeros(3), [torch.full((3,), 7.0)]])
    assert kernel.calls == 1


def test_attention_with_dropout_is_not_claimed_and_without_it_is() -> None:
    # once: its leaf counts as random by its tag alone, even with a dropout of 0, so no attention is ever kept
    kernel = Kernel(F.scaled_dot_product_attention)
    fast = executor("fast", {F.scaled_dot_product_attention: kernel})
    inputs = leaf(1, 1, 3, 4), leaf(1, 1, 3, 4), leaf(1, 1, 3, 4)

    def attention(p: float) -> Any:
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=p)

    jitted = sg.jit(attention(0.5), executors=[fast, "torch"])
    assert_same(step(jitted, *inputs), step(attention(0.5), *inputs))
    assert kernel.calls == 0
    step(sg.jit(attention(0.0), executors=[fast, "torch"]), *inputs)
    assert kernel.calls == 1
