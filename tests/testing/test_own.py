"""The executors that ship here, by the kit that plugins are tested with; nvFuser by replay of what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear import testing
from switchgear.testing import Sample
from switchgear_cublas import CublasExecutor
from switchgear_inductor import InductorExecutor
from switchgear_nvfuser import NvfuserExecutor
from tests.nvfuser.replay import recorded

CUBLAS = torch.ops.switchgear_cublas
ROWS, WEIGHT, BIAS = (torch.linspace(-2, 2, size).sin() for size in (12, 15, 5))
X, W = ROWS.reshape(4, 3), WEIGHT.reshape(5, 3)
LINEARS = [(X, W, BIAS), (X, W, None), (X, W.t().contiguous(), BIAS, True), (X.reshape(2, 2, 3), W, BIAS)]
#: What the executor's operators are called with; PyTorch's database has no samples of them.
CALLS: dict[Any, list[tuple[Any, ...]]] = {
    CUBLAS.linear_gelu.default: LINEARS,
    CUBLAS.linear_gelu_aux.default: LINEARS,
    CUBLAS.linear_relu.default: LINEARS,
    CUBLAS.linear_fp8.default: [(X, W, BIAS)],
    CUBLAS.matmul_dgelu.default: [(X, W.t().contiguous(), torch.linspace(-1, 1, 20).reshape(4, 5))],
    CUBLAS.matmul_bgrad.default: [(X, X), (X, X, True)],
}
SAMPLES: dict[object, list[Sample]] = {
    operator: [Sample(operator, args) for args in calls] for operator, calls in CALLS.items()
}


@pytest.mark.slow
@pytest.mark.discovery
def test_rules_of_cublas() -> None:
    testing.check_plugin("cublas", SAMPLES)


@pytest.mark.parametrize("operator", [one for one in SAMPLES if "fp8" not in str(one)], ids=str)
def test_operators_of_cublas(operator: Any) -> None:
    testing.check_implementation(CublasExecutor(), operator, SAMPLES[operator])


@pytest.mark.parametrize("target", [F.linear, torch.addmm, torch.bmm], ids=lambda one: one.__name__)
def test_products_of_cublas(target: Any) -> None:
    testing.check_implementation(CublasExecutor(), target)


@pytest.mark.discovery
def test_rules_of_inductor() -> None:
    testing.check_plugin("inductor")


TARGET = torch.tensor([1, 0, -100, 3, 5, -100])
LOGITS = torch.linspace(-2, 2, 42).sin().reshape(6, 7)
NVFUSER: dict[Any, list[Sample]] = {
    F.rms_norm: [
        Sample(F.rms_norm, (X, (3,), torch.tensor([0.5, -1.0, 2.0]), 1e-6)),
        Sample(F.rms_norm, (X, (4, 3))),
        Sample(F.rms_norm, (X[0], (3,), torch.tensor([0.5, -1.0, 2.0]))),
        Sample(F.rms_norm, (X.reshape(2, 2, 3), (2, 3), X[:2])),
    ],
    F.cross_entropy: [
        Sample(F.cross_entropy, (LOGITS, target), options)
        for target, options in (
            (TARGET, {}),
            (TARGET, {"reduction": "sum"}),
            (TARGET, {"reduction": "none"}),
            (TARGET.relu(), {"ignore_index": 0}),
        )
    ],
}


@pytest.mark.parametrize("target", NVFUSER, ids=lambda one: one.__name__)
def test_rules_of_nvfuser(target: Any) -> None:
    testing.check_rule(NvfuserExecutor(runner=recorded), target, NVFUSER[target])


def chain(x: Tensor, y: Tensor) -> Tensor:
    return (x.sin() * y + 1).relu() / 3


def normed(x: Tensor, y: Tensor) -> Tensor:
    return F.layer_norm(x * y, (3,)).softmax(-1)


def moved(x: Tensor, y: Tensor) -> Tensor:
    return (x.t() @ y).exp().transpose(0, 1)[1:] * 2


@pytest.mark.parametrize("function", [chain, normed, moved], ids=lambda one: one.__name__)
@pytest.mark.parametrize(
    "executor",
    [
        pytest.param(lambda: NvfuserExecutor(runner=recorded), id="nvfuser"),
        pytest.param(InductorExecutor, id="inductor"),
    ],
)
def test_regions(executor: Callable[[], sg.Executor], function: Callable[..., Tensor]) -> None:
    for given in ((X, X.cos()), (X.t().contiguous().t(), X[:1].expand(4, 3))):
        args = [one.detach().clone(memory_format=torch.preserve_format).requires_grad_() for one in given]
        testing.check_region(executor(), function, *args)
