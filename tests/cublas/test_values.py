"""Values and gradients are eager's: on a CPU the same operators run, in another grouping."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from tests.core.training import backward, forward, leaf, operators, owners
from tests.cublas.layers import ACTIVATIONS, FUSED, LAYOUTS, MLP, addmm, cublas, linear, own
from tests.oracle import step

#: A gradient is summed in another order than eager's where views are taken elsewhere.
TOLERANCES = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (1e-5, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
}


def assert_near(found: Any, wanted: Any, dtype: torch.dtype) -> None:
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, check_stride=True)


def arguments(shape: tuple[int, ...], layout: str, *, bias: bool, weight_layout: str) -> list[Tensor]:
    made = [LAYOUTS[layout](torch.randn(shape)), LAYOUTS[weight_layout](torch.randn(5, shape[-1]))]
    made += [torch.randn(5)] if bias else []
    return [value.requires_grad_() for value in made]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize("weight_layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((4, 3), "contiguous"),
        ((4, 3), "transposed"),
        ((4, 3), "strided"),
        ((2, 4, 3), "contiguous"),
        ((2, 4, 3), "transposed"),
        ((2, 4, 3), "strided"),
        ((2, 1, 2, 3), "contiguous"),
        ((3,), "contiguous"),
        ((1, 3), "contiguous"),
        ((4, 1), "contiguous"),
    ],
)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear(activation: str, shape: tuple[int, ...], layout: str, weight_layout: str, bias: bool) -> None:
    function = linear(activation)
    made = arguments(shape, layout, bias=bias, weight_layout=weight_layout)
    jitted = cublas(function)
    for _ in range(2):
        assert_near(step(jitted, *made), step(function, *made), torch.float32)
    fused = {"relu": ["linear_relu"], "gelu_tanh": ["linear_gelu_aux"], "gelu_erf": []}
    assert own(forward(jitted)) == fused[activation]
    if activation in FUSED or layout == "contiguous" or len(shape) < 3:  # else eager's is a product and a sum
        assert own(backward(jitted)) == (["matmul_bgrad"] if bias else [])
    detached = [value.detach() for value in made]
    assert_near(jitted(*detached), function(*detached), torch.float32)
    assert own(forward(jitted)) == ([FUSED[activation]] if activation in FUSED else [])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp_in_every_dtype(activation: str, dtype: torch.dtype) -> None:
    model = MLP(activation).to(dtype)
    twin = copy.deepcopy(model)
    jitted = cublas(model)
    x = torch.randn(2, 5, 8, dtype=dtype)
    found = []
    for called, module in ((jitted, model), (twin, twin)):
        given = x.clone().requires_grad_()
        result = called(given)
        result.square().sum().backward()
        found.append([result, given.grad, *[parameter.grad for parameter in module.parameters()]])
    assert_near(found[0], found[1], dtype)
    forwards = {"relu": ["linear_relu"], "gelu_tanh": ["linear_gelu_aux"], "gelu_erf": []}
    assert own(forward(jitted)) == forwards[activation]
    dgelu = ["matmul_dgelu"] if activation == "gelu_tanh" else []
    assert sorted(own(backward(jitted))) == sorted(["matmul_bgrad", *dgelu, "matmul_bgrad"])


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_product_with_transposed_weight(activation: str, layout: str, bias: bool) -> None:
    function = addmm(activation)
    made = [torch.randn(4, 3), LAYOUTS[layout](torch.randn(3, 5)), *([torch.randn(5)] if bias else [])]
    made = [value.requires_grad_() for value in made]
    jitted = cublas(function)
    for _ in range(2):
        assert_near(step(jitted, *made), step(function, *made), torch.float32)
    fused = {"relu": ["linear_relu"], "gelu_tanh": ["linear_gelu_aux"], "gelu_erf": []}
    assert own(forward(jitted)) == fused[activation]
    assert own(backward(jitted)) == (["matmul_bgrad"] if bias else [])


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)), ((5, 2, 3), (3, 4))],
)
def test_batched_and_broadcast_products(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    made = (leaf(*left), leaf(*right))
    jitted = cublas(torch.matmul)
    assert_near(step(jitted, *made), step(torch.matmul, *made), torch.float32)
    products = {name: owner for name, owner in owners(jitted, "execution").items() if name.endswith(("mm.default",))}
    assert products
    assert set(products.values()) == {"cublas"}
    detached = [value.detach() for value in made]
    assert_near(jitted(*detached), torch.matmul(*detached), torch.float32)
    assert owners(jitted, "execution") == {"torch.matmul": "cublas"}


def test_baddbmm() -> None:
    function = functools.partial(torch.baddbmm, beta=0.5, alpha=2)
    made = (leaf(4, 5), leaf(6, 4, 3), leaf(6, 3, 5))
    jitted = cublas(lambda c, a, b: function(c, a, b))
    assert_near(step(jitted, *made), step(function, *made), torch.float32)
    assert owners(jitted, "execution")["aten.baddbmm.default"] == "cublas"


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_products_of_other_numbers_are_left_to_torch(dtype: torch.dtype) -> None:
    jitted = cublas(torch.mm)
    a = torch.arange(6).reshape(2, 3).to(dtype)
    torch.testing.assert_close(jitted(a, a.mT), a @ a.mT)
    assert set(owners(jitted, "execution").values()) == {"torch"}
    assert f"no kernels for {dtype}" in str(sg.explain(jitted).operators())


def test_empty_product() -> None:
    function = linear("relu")
    made = [torch.randn(0, 3), torch.randn(5, 3), torch.randn(5)]
    jitted = cublas(function)
    assert_near(jitted(*made), function(*made), torch.float32)
    assert own(forward(jitted)) == []
    assert "cublas: empty" in str(sg.explain(jitted).operators())


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_gradients_of_some_arguments_alone(activation: str) -> None:
    function = linear(activation)
    for wanted in ([0], [1], [2], [0, 2]):
        made = [torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)]
        made = [value.requires_grad_(index in wanted) for index, value in enumerate(made)]
        assert_near(step(cublas(function), *made), step(function, *made), torch.float32)


def test_autocast_is_that_of_the_call() -> None:
    model = MLP("gelu_tanh")
    twin = copy.deepcopy(model)
    jitted, x = cublas(model), torch.randn(4, 8)
    for called in (jitted, twin):
        with torch.autocast("cpu", torch.bfloat16):
            result = called(x)
            assert result.dtype == torch.bfloat16
            result.sum().backward()
    assert own(forward(jitted)) == ["linear_gelu_aux"]
    for found, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        assert_near(found.grad, wanted.grad, torch.bfloat16)


def test_checkpointed_region() -> None:
    model = MLP("gelu_tanh")
    twin = copy.deepcopy(model)

    def function(x: Tensor, module: nn.Module) -> Tensor:
        y: Tensor = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
        return y.sin()

    jitted, x = cublas(function), torch.randn(4, 8, requires_grad=True)
    for called, module in ((jitted, model), (function, twin)):
        called(x, module).sum().backward()
    for found, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        assert_near(found.grad, wanted.grad, torch.float32)
    assert own(forward(jitted)) == ["linear_gelu_aux"]
    assert own(backward(jitted))[0] == "linear_gelu_aux"
    assert [value.readers for value in sg.last_saved(jitted) if not value.alive] == [(("aten.cos.default", 1),)]


def test_activation_in_place() -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, weight, bias).relu_()

    made = (leaf(4, 3), leaf(5, 3), leaf(5))
    jitted = cublas(function)
    assert_near(step(jitted, *made), step(function, *made), torch.float32)
    assert own(forward(jitted)) == ["linear_relu"]


def test_training_step_computed_inside() -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        y = F.gelu(F.linear(x, weight, bias), approximate="tanh")
        return torch.autograd.grad(y.square().sum(), (weight, bias))

    made = (torch.randn(4, 3), leaf(5, 3), leaf(5))
    jitted = cublas(function)
    for _ in range(2):
        assert_near(jitted(*made), function(*made), torch.float32)
    assert "matmul_bgrad" in own(forward(jitted))
    assert "aten.sum.dim_IntList" not in operators(forward(jitted))


def test_shapes_that_change() -> None:
    function, jitted = linear("gelu_tanh"), cublas(linear("gelu_tanh"))
    weight, bias = leaf(5, 3), leaf(5)
    for rows in (2, 7, 1, 2):
        made = (leaf(rows, 3), weight, bias)
        assert_near(step(jitted, *made), step(function, *made), torch.float32)
