"""On a GPU: the kernels against eager, with what PyTorch's policies say."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear_cublas import CublasExecutor, kernels, operators, plans
from tests.core.training import backward, forward
from tests.cublas.layers import ACTIVATIONS, LAYOUTS, MLP, addmm, linear, own
from tests.oracle import step

pytestmark = pytest.mark.gpu

#: Of a product of so many numbers around one, as PyTorch's own tests of matrix products have it.
TOLERANCES = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (1e-4, 1e-4),
    torch.bfloat16: (2e-2, 5e-2),
    torch.float16: (5e-3, 1e-2),
}
HALF = [torch.bfloat16, torch.float16]
needs_nvmath = pytest.mark.skipif(importlib.util.find_spec("nvmath") is None, reason="nvmath-python is not installed")
NVMATH = [False, pytest.param(True, marks=needs_nvmath)]


def on_gpu(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).div(shape[-1] ** 0.5).to(dtype)


def assert_near(found: Any, wanted: Any, dtype: torch.dtype) -> None:
    rtol, atol = TOLERANCES[dtype]
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol, check_stride=True)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize("weight_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("nvmath", NVMATH)
def test_linear(nvmath: bool, activation: str, dtype: torch.dtype, layout: str, weight_layout: str, bias: bool) -> None:
    function = linear(activation)
    jitted = sg.jit(function, executors=[CublasExecutor(nvmath=nvmath), "torch"])
    made = [LAYOUTS[layout](on_gpu(4, 16, 32, dtype=dtype)), LAYOUTS[weight_layout](on_gpu(64, 32, dtype=dtype))]
    if bias:
        # as far from zero that no rounding decides which side of ReLU a value is on, and which gradient it has
        made.append(on_gpu(64, dtype=dtype) if activation != "relu" else 8 * on_gpu(64, dtype=dtype).sign())
    for _ in range(3):
        given = [value.detach().requires_grad_() for value in made]
        assert_near(step(jitted, *given), step(function, *given), dtype)
        assert_near(jitted(*made), function(*made), dtype)
    if activation != "gelu_erf":
        assert own(forward(jitted)) == ["linear_relu" if activation == "relu" else "linear_gelu"]


@pytest.mark.parametrize("shape", [(64, 32), (2, 3, 32), (32,), (1, 32), (7, 1)])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_gelu_of_the_entry_point_is_by_tanh(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    made = (on_gpu(*shape, dtype=dtype), on_gpu(48, shape[-1], dtype=dtype), on_gpu(48, dtype=dtype))
    assert_near(kernels.linear_gelu(*made), operators.linear_gelu(*made), dtype)
    assert_near(kernels.linear_relu(*made), operators.linear_relu(*made), dtype)
    if dtype == torch.float64:
        assert (kernels.linear_gelu(*made) - F.gelu(F.linear(*made))).abs().max() > 1e-6


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_what_is_no_number_stays_so(dtype: torch.dtype) -> None:
    x, weight, bias = (on_gpu(*shape, dtype=dtype) for shape in ((16, 32), (64, 32), (64,)))
    x[3, 5] = float("nan")
    for kernel, wanted in ((kernels.linear_relu, operators.linear_relu), (kernels.linear_gelu, operators.linear_gelu)):
        found = kernel(x, weight, bias)
        assert found[3].isnan().all()
        assert torch.equal(found.isnan(), wanted(x, weight, bias).isnan())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@needs_nvmath
def test_epilogues_of_nvmath(dtype: torch.dtype, transposed: bool) -> None:
    x, bias = on_gpu(4, 16, 32, dtype=dtype), on_gpu(64, dtype=dtype)
    weight = on_gpu(32, 64, dtype=dtype) if transposed else on_gpu(64, 32, dtype=dtype)
    grad, behind, z = on_gpu(64, 24, dtype=dtype), on_gpu(24, 64, dtype=dtype), on_gpu(4, 16, 64, dtype=dtype)
    rows = on_gpu(64, 40, dtype=dtype)
    for _ in range(3):
        for row in (bias, None):
            found = plans.linear_gelu_aux(x, weight, row, transposed)
            assert_near(found, operators.linear_gelu_aux(x, weight, row, transposed), dtype)
        assert_near(plans.matmul_dgelu(grad, behind, z), operators.matmul_dgelu(grad, behind, z), dtype)
        found = plans.matmul_bgrad(grad, rows, transposed)
        assert_near(found, operators.matmul_bgrad(grad, rows, transposed), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("nvmath", NVMATH)
def test_mlp_trains(nvmath: bool, activation: str, dtype: torch.dtype) -> None:
    model = MLP(activation, width=64, device="cuda").to(dtype)
    jitted = sg.jit(model, executors=[CublasExecutor(nvmath=nvmath), "torch"])
    x = torch.randn(4, 16, 64, device="cuda", dtype=dtype)
    parameters = list(model.parameters())
    for _ in range(3):
        found = torch.autograd.grad(jitted(x).square().mean(), parameters)
        assert_near(found, torch.autograd.grad(model(x).square().mean(), parameters), dtype)
    expected = ["matmul_bgrad", "matmul_dgelu", "matmul_bgrad"] if activation == "gelu_tanh" else ["matmul_bgrad"] * 2
    assert own(backward(jitted)) == (expected if nvmath else [])
    if activation == "gelu_tanh" and not nvmath:
        assert "PyTorch has no entry point to this epilogue; CublasExecutor(nvmath=True) has" in str(
            sg.explain(jitted).operators()
        )


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_transposed_weight(activation: str) -> None:
    function = addmm(activation)
    made = (on_gpu(16, 32), on_gpu(32, 64), on_gpu(64))
    jitted = sg.jit(function, executors=["cublas", "torch"])
    assert_near(jitted(*made), function(*made), torch.float32)
    assert own(forward(jitted)) == [f"linear_{activation.removesuffix('_tanh')}"]


def launched(function: Any, *args: Tensor) -> int:
    """How many kernels a call runs, filling memory left out."""
    function(*args)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        function(*args)
        torch.cuda.synchronize()
    events = [event for event in profile.key_averages() if event.self_device_time_total > 0]
    return sum(event.count for event in events if "memset" not in event.key.lower())


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh"])
def test_the_activation_needs_no_kernel_of_its_own(activation: str) -> None:
    made = (on_gpu(256, 256).bfloat16(), on_gpu(256, 256).bfloat16(), on_gpu(256).bfloat16())
    jitted = sg.jit(linear(activation), executors=["cublas", "torch"])
    assert launched(jitted, *made) == launched(linear(activation), *made) - 1


def test_policy_of_float32_is_honoured(tf32_policy: None) -> None:
    made = (on_gpu(256, 1024), on_gpu(256, 1024), on_gpu(256))
    exact = linear("relu")(*[value.double() for value in made])
    errors = []
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        jitted = sg.jit(linear("relu"), executors=["cublas", "torch"])
        errors.append((jitted(*made).double() - exact).abs().max().item())
    assert errors[1] > 10 * errors[0]


@pytest.mark.parametrize("nvmath", NVMATH)
def test_cuda_graph(nvmath: bool) -> None:
    made = (on_gpu(64, 32), on_gpu(64, 32), on_gpu(64))
    jitted = sg.jit(linear("gelu_tanh"), executors=[CublasExecutor(nvmath=nvmath), "torch"])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        jitted(*made)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = jitted(*made)
    made[0].copy_(on_gpu(64, 32))
    graph.replay()
    assert_near(result, linear("gelu_tanh")(*made), torch.float32)


def test_8_bits() -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no products of 8 bits")
    x, weight, bias = (on_gpu(*shape, dtype=torch.bfloat16) for shape in ((3, 32, 64), (48, 64), (48,)))
    jitted = sg.jit(F.linear, executors=[CublasExecutor(fp8=True), "torch"])
    exact = F.linear(x.float(), weight.float(), bias.float())
    assert own((jitted(x, weight, bias), forward(jitted))[1]) == ["linear_fp8"]
    assert (jitted(x, weight, bias).float() - exact).norm() / exact.norm() < 0.04
