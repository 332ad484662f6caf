"""The core alone: its own front end and runtime, in a process that imports nothing above the core."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from switchgear_core import direct
from switchgear_core.errors import Unsupported
from switchgear_core.registry.executor import Executor
from switchgear_core.registry.registry import Table

MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "mlp": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), (3, 8)),
    "cnn": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)),
        (2, 3, 8, 8),
    ),
    "encoder": (nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (2, 5, 16)),
}


def same_training(function: Any, jitted: Any, parameters: list[nn.Parameter], inputs: Any) -> None:
    for _ in range(3):
        outcomes = []
        for run in (function, jitted):
            result = run(inputs)
            outcomes.append((result.detach(), *torch.autograd.grad(result.square().sum(), parameters)))
        assert all(map(torch.equal, *outcomes))
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(0.9)


@pytest.mark.parametrize("name", MODELS)
def test_models_train_bit_identically(name: str) -> None:
    module, shape = MODELS[name]
    same_training(module, direct.jit(module), [*module.parameters()], torch.randn(shape))


def test_gpt2_trains_bit_identically() -> None:
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=16)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = transformers.GPT2LMHeadModel(config)

    mask = torch.full((7, 7), -torch.inf).triu(1)[None, None]  # without one transformers asks for data

    def logits(ids: Tensor) -> Any:
        return model(ids, attention_mask=mask, use_cache=False).logits

    same_training(logits, direct.jit(logits), [*model.parameters()], torch.randint(0, 50, (2, 7)))


def test_an_executor_with_a_kernel_and_a_grad_rule() -> None:
    table = Table("first")
    ran = []

    @table.implementation(F.softplus)
    def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
        ran.append("kernel")
        return torch.log1p(torch.exp(x * beta)) / beta

    @table.grad_rule(F.softplus)
    def rule(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Any:
        ran.append("rule")
        return F.softplus(x, beta, threshold), lambda grad: grad * torch.sigmoid(x * beta)

    x = torch.randn(4, requires_grad=True)
    jitted = direct.jit(lambda x: F.softplus(x).sum(), [Executor("first", table=table), "torch"])
    jitted(x).backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.sigmoid(x.detach()))
    assert ran == ["rule", "kernel"]


def test_a_call_of_another_kind_is_recorded_anew() -> None:
    calls = []

    def scaled(x: Tensor, factor: int = 2) -> dict[str, Any]:
        calls.append(factor)
        return {"y": x * factor, "factor": factor}

    jitted = direct.jit(scaled)
    for _ in range(2):
        assert jitted(torch.ones(2))["y"].tolist() == [2.0, 2.0]
        assert jitted(torch.ones(3), factor=5) == {"y": pytest.approx([5.0] * 3), "factor": 5}
    assert calls == [2, 5]


@pytest.mark.parametrize(
    "function", [lambda x: x.add_(1), lambda x: x[0], lambda x: (y := x + 1, y.view(-1)), lambda x: x]
)
def test_writes_and_views_are_refused(function: Any) -> None:
    with pytest.raises(Unsupported):
        direct.jit(function)(torch.ones(2, 2))


def test_a_front_end_and_a_runtime_of_ones_own() -> None:
    seen: list[str] = []

    class Noting(direct.DirectFrontend):
        def capture(self, *arguments: Any) -> Any:
            seen.append("captured")
            return super().capture(*arguments)

    class Eager:
        def run(self, captured: Any, programs: Any) -> Any:
            seen.append("ran")
            return lambda inputs: captured.finish(captured.trace.function()(*inputs), inputs)

    jitted = direct.jit(lambda x: x.sin() + 1, frontend=Noting(), runtime=Eager())
    assert torch.equal(jitted(torch.ones(2)), torch.ones(2).sin() + 1)
    assert seen == ["captured", "ran"]


def test_the_core_imports_nothing_above_it() -> None:
    code = """
import sys, torch
from switchgear_core import direct
x = torch.ones(3, requires_grad=True)
direct.jit(lambda x: x.sin().sum())(x).backward()
assert torch.equal(x.grad, torch.ones(3).cos())
above = ("switchgear_frontend", "switchgear_runtime", "switchgear_tools", "switchgear_memory", "switchgear_background")
print([name for name in above if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
