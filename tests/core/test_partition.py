"""Partition: what is forward, what is backward, and what the one saves for the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import switchgear as sg
from switchgear.errors import NotDifferentiable
from switchgear_core.ir.symbol import RANDOM
from switchgear_runtime.last_call import last_entry
from tests.core.training import backward, executor, forward, leaf, lines, operators, rules
from tests.oracle import assert_same, assert_trains_as_eager, step


def saved(jitted: Any) -> list[str]:
    """The names of what the forward saves, and for each that the backward takes it by the same place."""
    trace = forward(jitted)
    count = len(sg.last_traces(jitted)[0].outputs)
    found = trace.outputs[count:]
    taken = backward(jitted).inputs[: len(found)]
    assert [proxy.shape for proxy in found if proxy is not None] == [proxy.shape for proxy in taken]
    return [proxy.name for proxy in found if proxy is not None]


def saved_tensors(jitted: Any, *args: Tensor) -> list[Tensor]:
    """What the forward really saves for these arguments of a function of tensors."""
    count = len(sg.last_traces(jitted)[0].outputs)
    bridge = jitted._switchgear.last.bridge
    return list(bridge.training.forward.function(*args))[count:]


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x, y: x.sum(), 0),
        (lambda x, y: x * 3 + y, 0),
        (lambda x, y: x.mean() + y.mean(), 0),
        (lambda x, y: torch.exp(x), 1),
        (lambda x, y: x * y, 2),
        (lambda x, y: x @ y, 2),
        (lambda x, y: x.expand(2, 3, 3).reshape(-1)[2:7], 0),
        (lambda x, y: torch.cat([x, y]).t().cumsum(0), 0),
        (lambda x, y: F.relu(x), 1),
        (lambda x, y: x / 7.0 - y / (x.shape[0] * 2), 0),
    ],
)
def test_what_is_saved(function: Any, count: int) -> None:
    """Sizes and other numbers stand in the backward as they are."""
    jitted = assert_trains_as_eager(function, leaf(3, 3), leaf(3, 3))
    assert len(saved(jitted)) == count


def test_only_what_a_wanted_gradient_needs_is_saved() -> None:
    jitted = assert_trains_as_eager(lambda x, y: x * y, leaf(3), torch.randn(3))
    assert len(saved(jitted)) == 1


def test_an_output_is_saved_as_itself() -> None:
    jitted = assert_trains_as_eager(torch.exp, leaf(3))
    assert [proxy.name for proxy in forward(jitted).outputs if proxy] == ["t0", "t0"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (w * w).sum() + (x @ w.t()).sum(),
        lambda x, w: (x @ w.t()) * w.t()[:4],
        lambda x, w: torch.exp(x).view(4, 4).t() * torch.exp(x) * w.reshape(16).view(4, 4),
        lambda x, w: (lambda y: y * y.t() * y.view(16)[2:6])(torch.tanh(x @ w)),
    ],
)
def test_one_tensor_per_storage(function: Any) -> None:
    """Two views of one tensor are saved as one of them."""
    # once: nothing in partition looks at storages but for what is overwritten
    x, w = leaf(4, 4), leaf(4, 4)
    jitted = assert_trains_as_eager(function, x, w)
    storages = [tensor.untyped_storage().data_ptr() for tensor in saved_tensors(jitted, x.detach(), w.detach())]
    assert len(storages) == len(set(storages))


def test_input_that_is_written_to_is_saved_as_a_copy() -> None:
    """The version that was used is what counts; eager refuses a backward through a tensor that was changed."""

    def function(x: Tensor, buffer: Tensor) -> Tensor:
        y = x * buffer
        buffer.add_(1)
        return y

    jitted = sg.jit(function, executors=["torch"])
    x, buffer = leaf(3), torch.tensor([1.0, 2.0, 3.0])
    y = jitted(x, buffer)
    assert_same(buffer, torch.tensor([2.0, 3.0, 4.0]))
    y.sum().backward()
    assert_same(x.grad, torch.tensor([1.0, 2.0, 3.0]))
    assert "aten.clone.default" in operators(forward(jitted))


def test_view_of_an_input_that_is_written_to_is_saved_as_a_copy() -> None:
    def function(x: Tensor, buffer: Tensor) -> Tensor:
        y = x * buffer.t()[0]
        buffer.zero_()
        return y

    jitted = sg.jit(function, executors=["torch"])
    x, buffer = leaf(2), torch.ones(2, 2)
    jitted(x, buffer).sum().backward()
    assert_same(x.grad, torch.ones(2))
    assert_same(buffer, torch.zeros(2, 2))


def test_nothing_is_copied_where_nothing_is_overwritten() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh())
    jitted = sg.jit(model, executors=["torch"])
    jitted(torch.randn(5, 3)).sum().backward()
    assert "aten.clone.default" not in operators(forward(jitted))


# Random numbers.


def test_what_draws_stays_in_the_forward() -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout(torch.exp(x), 0.3) * torch.rand_like(x) + torch.randn(3)

    jitted = assert_trains_as_eager(function, leaf(3))
    assert not [item for item in lines(backward(jitted)) if RANDOM in item.tags]
    assert len([item for item in lines(forward(jitted)) if RANDOM in item.tags]) == 3


def test_what_is_drawn_and_never_used_is_drawn_all_the_same() -> None:
    def function(x: Tensor) -> Tensor:
        torch.rand(3)
        F.dropout(x, 0.5)
        return x * torch.rand(3)

    assert_trains_as_eager(function, leaf(3))


def test_what_only_the_backward_uses_is_drawn_in_the_forward() -> None:
    def rule(x: Tensor) -> Any:
        noise = torch.rand_like(x)
        return torch.sin(x), lambda grad: grad * noise

    jitted = sg.jit(torch.sin, executors=["torch"], grad_rules=rules(torch.sin, rule))
    x = leaf(3)
    torch.manual_seed(0)
    y = jitted(x)
    torch.manual_seed(9)
    y.sum().backward()
    torch.manual_seed(0)
    assert_same(x.grad, torch.rand(3))


# Inputs and outputs of either half.


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x,
        lambda x, y: (x, x * y, y),
        lambda x, y: x.clone(),
        lambda x, y: x.view(3, 2),
        lambda x, y: (x + 0, None, 3, "a"),
        lambda x, y: x.expand(4, 2, 3),
        lambda x, y: x * torch.full((3,), 2.0),
        lambda x, y: [x.sum(), {"y": y.detach()}],
    ],
)
def test_gradients_that_are_grad_outputs_or_constants(function: Any) -> None:
    assert_trains_as_eager(function, leaf(2, 3), leaf(2, 3))


def test_backward_takes_what_is_saved_and_then_the_defined_grad_outputs() -> None:
    jitted = assert_trains_as_eager(lambda x: (torch.exp(x), torch.argmax(x), x.detach(), x * x), leaf(3))
    names = saved(jitted)
    assert [proxy.name for proxy in backward(jitted).inputs[len(names) :]] == ["g_t0", "g_t3"]


def test_halves_run_apart_give_the_whole() -> None:
    jitted = sg.jit(lambda x, y: torch.tanh(x @ y).sum(), executors=["torch"])
    x, y = leaf(2, 3), leaf(3, 2)
    step(jitted, x, y)
    bridge = last_entry(jitted).bridge
    assert bridge is not None
    training = bridge.training
    out, *kept = training.forward.function(x.detach(), y.detach())
    grads = training.backward.function([*kept, torch.ones(())])
    assert_same([out.detach(), *grads], [torch.tanh(x @ y).sum().detach(), *step(jitted, x, y)[1]])


# Memory.


def test_saved_tensors_die_in_the_backward_though_the_output_lives() -> None:
    storages: list[StorageWeakRef] = []

    def exp(x: Tensor) -> Tensor:
        y = torch.ops.aten.exp(x)
        storages.append(StorageWeakRef(y.untyped_storage()))
        return y  # type: ignore[no-any-return]

    fast = executor("fast", {torch.ops.aten.exp.default: exp})
    loss = sg.jit(lambda x: torch.exp(x).sum(), executors=[fast, "torch"])(leaf(4))
    assert not storages[0].expired()
    loss.backward()
    assert storages[0].expired()


def test_saved_tensors_are_freed_as_the_backward_goes() -> None:
    storages: list[StorageWeakRef] = []
    alive: list[int] = []

    def exp(x: Tensor) -> Tensor:
        y = torch.ops.aten.exp(x)
        storages.append(StorageWeakRef(y.untyped_storage()))
        return y  # type: ignore[no-any-return]

    def mul(x: Tensor, y: Tensor) -> Tensor:
        alive.append(sum(not storage.expired() for storage in storages))
        return torch.ops.aten.mul(x, y)  # type: ignore[no-any-return]

    fast = executor("fast", {torch.ops.aten.exp.default: exp, torch.ops.aten.mul.Tensor: mul})
    loss = sg.jit(lambda x: x.exp().exp().exp().exp().sum(), executors=[fast, "torch"])(leaf(4) * 0)
    loss.backward()
    assert alive == [4, 3, 2, 1]


def test_call_that_is_never_differentiated_keeps_nothing() -> None:
    storages: list[StorageWeakRef] = []

    def exp(x: Tensor) -> Tensor:
        y = torch.ops.aten.exp(x)
        storages.append(StorageWeakRef(y.untyped_storage()))
        return y  # type: ignore[no-any-return]

    jitted = sg.jit(
        lambda x: torch.exp(x).sum(), executors=[executor("fast", {torch.ops.aten.exp.default: exp}), "torch"]
    )
    loss = jitted(leaf(4))
    del loss
    assert storages[0].expired()
    assert not jitted(torch.ones(3)).requires_grad
    assert storages[1].expired()


# What is said about it.


def test_without_gradients_nothing_is_said_to_be_saved() -> None:
    jitted = sg.jit(torch.exp, executors=["torch"])
    jitted(torch.ones(3))
    assert sg.last_saved(jitted) == ()
    assert str(sg.explain(jitted).saved()) == "nothing is saved"
    assert "saved for" not in str(sg.explain(jitted))


# What a rule of the user's saves.


def _masks() -> sg.Executor:
    table = sg.Table("masks")
    table.augmented(
        torch.relu,
        forward=lambda x: (torch.relu(x), (x > 0,)),
        backward=lambda mask, grad: grad * mask,
    )
    return sg.Executor("masks", table=table)


def _through_relu(x: Tensor) -> Tensor:
    return torch.relu(x * 2).sum()


def test_what_an_augmented_rule_keeps_is_saved() -> None:
    jitted = sg.jit(_through_relu, executors=[_masks(), "torch"], memory="eager")
    jitted(leaf(1000)).backward()
    (mask,) = sg.last_saved(jitted)
    assert (mask.bytes, mask.reason) == (1000, "the rule of masks (augmented) keeps it")


def test_what_a_pullback_closes_over_is_saved() -> None:
    table = sg.Table("masks")

    @table.grad_rule(torch.relu)
    def rule(x: Tensor) -> Any:
        mask = x > 0
        return torch.relu(x), lambda grad: grad * mask

    jitted = sg.jit(_through_relu, executors=[sg.Executor("masks", table=table), "torch"], memory="eager")
    jitted(leaf(1000)).backward()
    (mask,) = sg.last_saved(jitted)
    assert (mask.bytes, mask.reason) == (1000, "the rule of masks (pullback) keeps it")


def test_second_derivative_of_a_rule_that_did_not_save_what_it_reads_is_refused() -> None:
    table = sg.Table("lean")
    table.augmented(torch.sin, forward=lambda x: (torch.sin(x), (torch.cos(x),)), backward=lambda cos, grad: grad * cos)
    x = leaf(3)
    jitted = sg.jit(lambda x: torch.sin(x * 2), executors=[sg.Executor("lean", table=table), "torch"])
    (first,) = torch.autograd.grad(jitted(x).sum(), x, create_graph=True)
    assert_same(first, 2 * torch.cos(x * 2))
    with pytest.raises(NotDifferentiable, match="let the rule save it"):
        torch.autograd.grad(first.sum(), x)
