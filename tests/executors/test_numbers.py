"""Numbers as tensors: arithmetic with a number is eager's to the bit, and makes no tensor of the number in a call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import pytest
import torch

import switchgear as sg

T = torch.Tensor
OPERATORS: dict[str, Callable[..., T]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "add with alpha": lambda x, number: torch.add(x, number, alpha=3),
    "gradient": lambda x, number: x * number + number,
}
NUMBERS = (1, -3, 2**40 + 1, 0.1, -0.0, 1e300, 1 / 3, math.inf, math.nan)
HELD = (torch.float32, torch.float64, torch.int64, torch.int32)
OTHERS = (torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.uint8)


def values(dtype: torch.dtype, *shape: int) -> T:
    return torch.linspace(-7.3, 9.1, math.prod(shape)).reshape(shape).to(dtype)


def held(jitted: Callable[..., object]) -> list[T]:
    return [*sg.last_traces(jitted)[-1].tensors.values()]


def bits(tensor: T) -> tuple[object, ...]:
    return (tensor.dtype, tensor.shape, tensor.stride(), tensor.contiguous().view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", [*HELD, *OTHERS], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_bit_is_eagers(name: str, dtype: torch.dtype) -> None:
    def function(x: T) -> list[T]:
        return [OPERATORS[name](y, number) for y in (x, x.t()) for number in NUMBERS]

    if name == "sub" and dtype is torch.bool:
        pytest.skip("PyTorch subtracts no booleans")
    jitted = sg.jit(function, executors=["torch"])
    x = values(dtype, 3, 5)
    assert [*map(bits, jitted(x))] == [*map(bits, function(x))]


@pytest.mark.parametrize("grad", [False, True])
def test_one_tensor_stands_for_a_number_in_all_calls(grad: bool) -> None:
    jitted = sg.jit(lambda x: (x * 2 + 1) / 2 - 1 + (x.double() * 2).float(), executors=["torch"])
    jitted(values(torch.float32, 3).requires_grad_(grad))
    expected = [(2.0, torch.float32), (1.0, torch.float32), (2.0, torch.float64)]
    assert [(tensor.item(), tensor.dtype) for tensor in held(jitted)] == expected


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_kernels_that_compute_in_another_dtype_get_the_number(dtype: torch.dtype) -> None:
    jitted = sg.jit(lambda x: x * 2, executors=["torch"])
    jitted(values(dtype, 3))
    assert held(jitted) == []


def test_numbers_that_change_the_dtype_stay() -> None:
    jitted = sg.jit(lambda x: (x + 0.5, x / 2), executors=["torch"])
    jitted(torch.arange(3))
    assert held(jitted) == []


def test_gradients_of_any_order_are_eagers() -> None:
    def function(x: T) -> T:
        return (x * 3 + 0.1).sin() / 7

    x = values(torch.float64, 4).requires_grad_()
    found = []
    for call in (function, sg.jit(function, executors=["torch"])):
        (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        found.append((bits(first.detach()), bits(second)))
    assert found[0] == found[1]
