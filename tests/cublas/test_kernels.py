"""The kernels: PyTorch's entry points as they run here, and plans of nvmath against what each epilogue computes."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear_cublas import CublasExecutor, internals, kernels, operators, plans
from tests.core.training import forward
from tests.cublas.layers import LAYOUTS, linear, own


def made(*shape: int, layout: str = "contiguous", transposed: bool = False, bias: bool = True) -> list[Any]:
    weight = LAYOUTS[layout](torch.randn((shape[-1], 8) if transposed else (8, shape[-1])))
    given: list[Any] = [LAYOUTS[layout](torch.randn(shape)) if len(shape) > 1 else torch.randn(shape), weight]
    return [*given, torch.randn(8) if bias else None, transposed]


SHAPES = [(6, 5), (2, 3, 5), (5,)]
VARIANTS = [(layout, flag, bias) for layout in LAYOUTS for flag in (False, True) for bias in (False, True)]


# PyTorch's entry points.


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("layout", "transposed", "bias"), VARIANTS)
def test_linear_relu(shape: tuple[int, ...], layout: str, transposed: bool, bias: bool) -> None:
    given = made(*shape, layout=layout, transposed=transposed, bias=bias)
    torch.testing.assert_close(kernels.linear_relu(*given), operators.linear_relu(*given), check_stride=True)


@pytest.mark.parametrize("transposed", [False, True])
def test_gelu_of_the_entry_point_is_by_erf_on_a_cpu(transposed: bool) -> None:
    """Which is why the executor does not call it here; on CUDA it is by tanh."""
    given = made(6, 5, transposed=transposed)
    exact = F.gelu(operators.linear(*given))
    torch.testing.assert_close(kernels.linear_gelu(*given), exact)
    assert (exact - operators.linear_gelu(*given)).abs().max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_fp8(dtype: torch.dtype, bias: bool) -> None:
    x, weight = torch.randn(3, 4, 32).to(dtype), torch.randn(16, 32).to(dtype)
    row = torch.randn(16).to(dtype) if bias else None
    found = kernels.linear_fp8(x, weight, row)
    exact = operators.linear_fp8(x.float(), weight.float(), None if row is None else row.float())
    assert (found.dtype, found.shape, found.stride()) == (dtype, exact.shape, exact.stride())
    # a number of 8 bits (e4m3) is within a 16th; the errors of 32 products average out
    assert (found.float() - exact).norm() / exact.norm() < 0.04
    assert (found.float() - exact).abs().max() > 0


def test_8_bits_hold_zeros_and_large_numbers() -> None:
    zero, large = torch.zeros(16, 32).bfloat16(), torch.full((16, 32), 1e30).bfloat16()
    assert torch.equal(kernels.linear_fp8(zero, large), torch.zeros(16, 16).bfloat16())
    rounded, scale = internals._rounded(large)
    torch.testing.assert_close(rounded.float() * scale, large.float())


def test_8_bits_on_request() -> None:
    x, weight = torch.randn(4, 32).bfloat16(), torch.randn(16, 32).bfloat16().requires_grad_()
    function = linear("gelu_tanh")
    jitted = sg.jit(function, executors=[CublasExecutor(fp8=True), "torch"])
    (found,) = torch.autograd.grad(jitted(x, weight).sum(), weight)
    assert own(forward(jitted)) == ["linear_fp8"]
    z = kernels.linear_fp8(x, weight.detach()).requires_grad_()
    (grad,) = torch.autograd.grad(F.gelu(z, approximate="tanh").sum(), z)
    torch.testing.assert_close(jitted(x, weight).detach(), F.gelu(z, approximate="tanh").detach())
    torch.testing.assert_close(found, grad.t() @ x)
    assert own(forward(sg_jitted(function, x, weight))) == ["linear_gelu_aux"]


def sg_jitted(function: Any, *args: Tensor) -> Any:
    jitted = sg.jit(function, executors=["cublas", "torch"])
    jitted(*args)
    return jitted


@pytest.mark.parametrize(
    ("dtype", "features", "reason"),
    [
        (torch.float32, 16, "8 bits take the place of bfloat16 and float16, not of torch.float32"),
        (torch.bfloat16, 24, "are no multiples of 16"),
    ],
)
def test_8_bits_declined(dtype: torch.dtype, features: int, reason: str) -> None:
    x, weight = torch.randn(4, 32, dtype=dtype), torch.randn(features, 32, dtype=dtype)
    jitted = sg.jit(F.linear, executors=[CublasExecutor(fp8=True), "torch"])
    assert torch.equal(jitted(x, weight), F.linear(x, weight))
    assert reason in str(sg.explain(jitted).operators())


# Plans of nvmath.


class Epilogue:
    """An enumeration as `nvmath.linalg.advanced.MatmulEpilog`, of names alone."""

    def __class_getitem__(cls, name: str) -> str:
        return name


def by_columns(value: Tensor) -> Tensor:
    return value.t().contiguous().t()


class Matmul:
    """What nvmath's `Matmul` is documented to compute: results by columns, a bias per row, sums over the contraction.

    It is as stateful as that, and as strict: a plan is for operands of one kind, and runs on those it was given last.
    """

    planned = 0

    def __init__(self, a: Tensor, b: Tensor, *, options: dict[str, Any], stream: object) -> None:
        assert all(1 in matrix.stride() for matrix in (a, b)), "cuBLASLt takes no matrix with gaps in both directions"
        self.a: Tensor | None = a
        self.b: Tensor | None = b
        self.options = options
        self.kind = (a.shape, a.stride(), b.shape, b.stride())
        self.freed = False
        type(self).planned += 1

    def plan(self, *, epilog: str, epilog_inputs: dict[str, Tensor] | None, stream: object) -> None:
        self.epilog, self.given = epilog, epilog_inputs or {}

    def reset_operands_unchecked(
        self, *, a: Tensor, b: Tensor, epilog_inputs: dict[str, Tensor] | None, stream: object
    ) -> None:
        assert self.kind == (a.shape, a.stride(), b.shape, b.stride())
        self.a, self.b, self.given = a, b, epilog_inputs or {}

    def release_operands(self) -> None:
        self.a = self.b = None
        self.given = {}

    def free(self) -> None:
        self.freed = True

    def execute(self, *, stream: object) -> Any:
        assert self.a is not None
        assert self.b is not None
        product = self.a @ self.b
        if self.epilog.endswith("_BIAS"):
            assert self.given["bias"].shape == (product.shape[0],)
            product = product + self.given["bias"][:, None]
        if self.epilog.startswith("GELU_AUX"):
            return by_columns(F.gelu(product, approximate="tanh")), {"gelu_aux": by_columns(product)}
        if self.epilog == "DGELU":
            z = self.given["gelu_aux"]
            assert z.shape == product.shape
            assert z.stride(0) == 1
            return by_columns(torch.ops.aten.gelu_backward(product, z, approximate="tanh"))
        if self.epilog == "BGRADA":
            return by_columns(product), {"bgrada": self.a.sum(1)}
        assert self.epilog == "BGRADB"
        return by_columns(product), {"bgradb": self.b.sum(0)}


@pytest.fixture
def nvmath(monkeypatch: pytest.MonkeyPatch) -> type[Matmul]:
    compute = types.SimpleNamespace(COMPUTE_32F="f32", COMPUTE_32F_FAST_TF32="tf32")
    module = types.SimpleNamespace(Matmul=Matmul, MatmulEpilog=Epilogue, MatmulComputeType=compute)
    monkeypatch.setattr(plans, "_nvmath", lambda: module)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(plans, "_plans", type(plans._plans)())
    monkeypatch.setattr(Matmul, "planned", 0)
    return Matmul


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("layout", "transposed", "bias"), VARIANTS)
def test_plan_of_linear_gelu_aux(
    nvmath: type[Matmul], shape: tuple[int, ...], layout: str, transposed: bool, bias: bool
) -> None:
    given = made(*shape, layout=layout, transposed=transposed, bias=bias)
    wanted = operators.linear_gelu_aux(*given)
    torch.testing.assert_close(plans.linear_gelu_aux(*given), wanted, check_stride=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_plan_of_matmul_dgelu(nvmath: type[Matmul], layout: str) -> None:
    given = (LAYOUTS[layout](torch.randn(6, 5)), LAYOUTS[layout](torch.randn(5, 8)), torch.randn(2, 3, 8))
    torch.testing.assert_close(plans.matmul_dgelu(*given), operators.matmul_dgelu(*given), check_stride=True)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_plan_of_matmul_bgrad(nvmath: type[Matmul], layout: str, transposed: bool) -> None:
    given = (LAYOUTS[layout](torch.randn(6, 5)), LAYOUTS[layout](torch.randn(6, 8)), transposed)
    torch.testing.assert_close(plans.matmul_bgrad(*given), operators.matmul_bgrad(*given), check_stride=True)


def test_plans_are_kept_for_operands_of_one_kind_and_hold_none(nvmath: type[Matmul]) -> None:
    given = made(6, 5)
    for _ in range(3):
        for value in given[:3]:
            value.mul_(2)  # other numbers, in the same place
        torch.testing.assert_close(plans.linear_gelu_aux(*given), operators.linear_gelu_aux(*given))
    assert nvmath.planned == len(plans._plans) == 1
    assert all(plan.a is plan.b is None and not plan.given for plan in plans._plans.values())
    plans.linear_gelu_aux(*made(7, 5))
    plans.linear_gelu_aux(*made(6, 5, bias=False))
    assert nvmath.planned == 3


def test_plan_used_least_recently_is_let_go(nvmath: type[Matmul], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_LIMIT", 1)
    plans.linear_gelu_aux(*made(6, 5))
    (first,) = plans._plans.values()
    plans.linear_gelu_aux(*made(7, 5))
    assert first.freed
    assert len(plans._plans) == 1


def test_precision_of_float32_is_that_of_the_policy(nvmath: type[Matmul], tf32_policy: None) -> None:
    chosen = []
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        plans.linear_gelu_aux(*made(6, 5))
        chosen.append(list(plans._plans.values())[-1].options["compute_type"])
    assert chosen == ["f32", "tf32"]
