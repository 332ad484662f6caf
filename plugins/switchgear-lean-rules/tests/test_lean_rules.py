"""Saved tensors of the rules, and the equality of losses and gradients with PyTorch's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from switchgear_lean_rules.__main__ import bert, gpt2, saved_bytes
from torch import Tensor

import switchgear as sg

WITH = ["lean_rules", "torch"]


def outcome(function: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the result and the gradients, from one point of the random stream."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    torch.manual_seed(0)
    result = function(*leaves)
    result.sin().sum().backward()
    return (result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None))


def assert_as_eager(function: Any, *tensors: Tensor) -> Any:
    jitted = sg.jit(function, executors=WITH)
    torch.testing.assert_close(outcome(jitted, *tensors), outcome(function, *tensors))
    return jitted


def owners(function: object) -> set[str]:
    return {choice.owner for choice in sg.last_choices(function) if choice.kind == "gradient"}


def test_by_the_kit() -> None:
    from switchgear import testing

    testing.check_plugin("lean_rules")


@pytest.mark.parametrize("relu", [torch.relu, F.relu, torch.Tensor.relu])
def test_relu_saves_a_byte_an_element(relu: Any) -> None:
    jitted = assert_as_eager(lambda x: relu(x * 2), torch.randn(1000))
    (mask,) = sg.last_saved(jitted)
    assert mask.bytes == 1000


def test_relu_that_is_left_to_pytorch() -> None:
    jitted = sg.jit(lambda x: torch.relu(x * 2), executors=WITH, avoid={"aten.relu.default": "lean_rules"})
    outcome(jitted, torch.randn(1000))
    assert sum(value.bytes for value in sg.last_saved(jitted)) == 4000


def test_relu_of_what_is_no_number() -> None:
    def weighted(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x * 1) * y

    operands = torch.tensor([-1.0, 0.0, 1.0, math.nan, -1.0]), torch.tensor([1.0, 1.0, 1.0, 1.0, math.inf])
    jitted = sg.jit(weighted, executors=WITH)
    for result, expected in zip(outcome(jitted, *operands), outcome(weighted, *operands), strict=True):
        torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_draws_as_eager(p: float, dtype: torch.dtype) -> None:
    jitted = assert_as_eager(lambda x: F.dropout(x.t() * 2, p), torch.randn(30, 40, dtype=dtype))
    assert sum(value.bytes for value in sg.last_saved(jitted) if "draw" in value.origin) == 1200


@pytest.mark.parametrize("options", [{"p": 0.0}, {"p": 1.0}, {"training": False}, {"inplace": True}], ids=str)
def test_dropout_that_is_left_to_pytorch(options: dict[str, Any]) -> None:
    jitted = assert_as_eager(lambda x: F.dropout(x * 2, **options), torch.randn(30))
    assert "lean_rules" not in owners(jitted)


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "bool": {"attn_mask": torch.arange(42).reshape(6, 7) % 3 > 0},
    "float": {"attn_mask": torch.arange(42.0).reshape(6, 7).sin()},
    "nothing seen": {"attn_mask": torch.arange(6)[:, None].expand(6, 7) > 0},
}


@pytest.mark.parametrize("name", MASKS)
def test_attention(name: str) -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (tensor.transpose(1, 2) * 2 for tensor in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, **MASKS[name])

    operands = torch.randn(2, 6, 3, 8), torch.randn(2, 7, 3, 8), torch.randn(2, 7, 3, 8)
    jitted = assert_as_eager(attention, *operands)
    assert "lean_rules" in owners(jitted)
    arguments = 4 * sum(tensor.numel() for tensor in operands)
    assert saved_bytes(jitted) <= arguments + 2 * 3 * 6 * 7 + 6 * 7 * 4


def test_attention_that_is_left_to_pytorch() -> None:
    def attention(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q * 2, q, q)

    assert "lean_rules" not in owners(assert_as_eager(attention, torch.randn(2, 3, 6, 8)))


def test_second_derivatives() -> None:
    def penalty(x: Tensor) -> Tensor:
        q = x * 2
        y = F.dropout(F.relu(q), 0.3) + F.scaled_dot_product_attention(q, q, q, dropout_p=0.2)
        (gradient,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        return gradient.pow(2).sum()

    x = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    (expected,) = torch.autograd.grad(penalty(x), x)
    torch.manual_seed(0)
    (result,) = torch.autograd.grad(sg.jit(penalty, executors=WITH)(x), x)
    torch.testing.assert_close(result, expected)


def gelu_new(x: Tensor) -> Tensor:
    x = x * 2
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def test_gelu_written_out() -> None:
    jitted = assert_as_eager(gelu_new, torch.randn(1000))
    (argument,) = sg.last_saved(jitted)
    assert argument.bytes == 4000


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.05 * torch.pow(x, 3.0)))),
        lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x.cos(), 3.0)))),
        lambda x: (t := torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3.0)))) + 0.5 * x * (1.0 + t),
    ],
    ids=["another factor", "two arguments", "a part is read elsewhere"],
)
def test_what_is_no_gelu(function: Any) -> None:
    jitted = assert_as_eager(function, torch.randn(100))
    assert "aten.gelu" not in sg.last_traces(jitted)[-1].python()


@pytest.mark.parametrize("make", [gpt2, bert])
def test_training_step_saves_a_quarter_less(make: Any) -> None:
    ids = torch.randint(1000, (4, 64))
    saved, losses, gradients = [], [], []
    for executors in (["torch"], WITH):
        torch.manual_seed(0)
        model = sg.jit(make("sdpa").train(), executors=executors)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        saved.append(saved_bytes(model))
        losses.append(loss.detach())
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)
    assert saved[1] <= 0.75 * saved[0]
