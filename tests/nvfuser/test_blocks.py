"""Blocks of models, forward and backward: what nvFuser takes of them, and that it comes to eager's results."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

import switchgear as sg
from switchgear_cublas import CublasExecutor
from switchgear_nvfuser import NvfuserExecutor
from switchgear_nvfuser.executor import Runner
from tests.core.training import backward, forward, lines
from tests.nvfuser.replay import recorded, reprinted

RUNNERS = [recorded, pytest.param(reprinted, marks=pytest.mark.nvfuser)]


class Norm(nn.Module):
    """A norm by root mean squares, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Gated(nn.Module):
    """The feed-forward part of a Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return made


class Rotary(nn.Module):
    """Rotary position embeddings of queries."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.view(2, 6, 2, 8).transpose(1, 2)
        angles = torch.arange(6, device=x.device).unsqueeze(1) * 10000.0 ** (
            -torch.arange(0, 8, 2, device=x.device) / 8
        )
        angles = torch.cat([angles, angles], -1)
        turned = torch.cat([-heads[..., 4:], heads[..., :4]], -1)
        return heads * angles.cos() + turned * angles.sin()


class Dropped(nn.Module):
    """Dropout between pointwise operators."""

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(F.gelu(x) * 2, 0.3)


class Loss(nn.Module):
    """The cross entropy of a head, some rows ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 30)

    def forward(self, x: Tensor) -> Tensor:
        target = torch.arange(12, device=x.device)
        return F.cross_entropy(self.head(x).flatten(0, 1), torch.where(target % 3 == 0, -100, target))


class Attention(nn.Module):
    """A block of a Llama, with its rotary embeddings."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.LlamaConfig(
            hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1
        )
        config._attn_implementation = "eager"
        self.rotary = LlamaRotaryEmbedding(config)
        self.block = LlamaDecoderLayer(config, 0)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(6, device=x.device).unsqueeze(0)
        result = self.block(x, position_embeddings=self.rotary(x, positions))
        made: Tensor = result[0] if isinstance(result, tuple) else result
        return made


class Gpt2(nn.Module):
    """A block of a GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        config = transformers.GPT2Config(n_head=2, n_embd=16, n_positions=8, n_layer=1)
        config._attn_implementation = "eager"
        self.block = GPT2Block(config)

    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        made: Tensor = result[0] if isinstance(result, tuple) else result
        return made


BLOCKS: list[tuple[str, Callable[[], nn.Module], int, int]] = [
    # the least number of regions in forward and backward
    ("Llama block", Attention, 4, 4),
    ("GPT-2 block", Gpt2, 4, 4),
    ("RMSNorm", lambda: nn.RMSNorm(16), 1, 1),
    ("RMSNorm written out", Norm, 1, 1),
    ("LayerNorm", lambda: nn.Sequential(nn.GELU(), nn.LayerNorm(16)), 1, 1),
    ("SwiGLU", Gated, 1, 1),
    ("RoPE", Rotary, 1, 1),
    ("dropout", Dropped, 1, 1),
    ("cross entropy", Loss, 1, 1),
]

#: Why operators may be left to PyTorch.
REASONS = (
    "a product, for which there are libraries",
    "a view that is read outside of its regions",
    "it draws random numbers, and nvFuser draws others than PyTorch",
    "a region of 1 operators, fewer than 2",
    "a region of views alone",
    "nvFuser has no aten.empty_permuted.default, a part of it",
)


def trained(call: Callable[..., Any], module: nn.Module, x: Tensor) -> list[Tensor | None]:
    torch.manual_seed(3)
    given = x.clone().requires_grad_()
    out = call(given)
    (out * torch.linspace(0.5, 1.5, out.numel(), device=out.device).view(out.shape)).sum().backward()
    return [out.detach(), given.grad, *[parameter.grad for parameter in module.parameters()]]


def taken(trace: sg.Trace) -> list[int]:
    """The number of operators in each region."""
    return [len(NvfuserExecutor.operators(sg.Trace("", (), (), item.subsymbols))) for item in regions(trace)]


def regions(trace: sg.Trace) -> list[sg.BoundSymbol]:
    return [item for item in lines(trace) if item.implementation and item.implementation.owner == "nvfuser"]


def left(jitted: Any) -> Counter[tuple[str, str]]:
    """What the executor declined, leaves alone, with its reasons."""
    return Counter(
        (choice.symbol, reason)
        for choice in sg.last_choices(jitted)
        for who, reason in choice.declined
        if who == "nvfuser" and choice.kind == "execution" and choice.owner != "decomposition"
    )


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(("name", "build", "least", "least_backward"), BLOCKS, ids=[name for name, *_ in BLOCKS])
def test_block(name: str, build: Callable[[], nn.Module], least: int, least_backward: int, runner: Runner) -> None:
    module, x = build(), torch.randn(2, 6, 16)
    twin = copy.deepcopy(module)
    jitted = sg.jit(module, executors=[NvfuserExecutor(runner=runner), "torch"])
    # a region that fails would be left to PyTorch, with a warning
    with warnings.catch_warnings():
        warnings.simplefilter("error", sg.errors.PluginWarning)
        found = trained(jitted, module, x)
    torch.testing.assert_close(found, trained(twin, twin, x), rtol=2e-5, atol=2e-5)
    counts, back = taken(forward(jitted)), taken(backward(jitted))
    print(f"\n{name}: {len(counts)} regions of {counts}, backward {len(back)} of {back}; left to PyTorch:")
    for (symbol, reason), count in sorted(left(jitted).items()):
        print(f"  {count} x {symbol}: {reason}")
        assert reason in REASONS, symbol
    assert len(counts) >= least
    assert len(back) >= least_backward


@pytest.mark.parametrize("runner", RUNNERS)
def test_sixteen_bits(runner: Runner) -> None:
    module, x = Norm().bfloat16(), torch.randn(2, 6, 16, dtype=torch.bfloat16)
    twin = copy.deepcopy(module).double()
    jitted = sg.jit(module, executors=[NvfuserExecutor(runner=runner), "torch"])
    found, wanted = trained(jitted, module, x), trained(twin, twin, x.double())
    for one, other in zip(found, wanted, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one.double(), other, rtol=3e-2, atol=3e-2)


def test_lists_give_different_programs() -> None:
    x, fused = torch.randn(2, 6, 16), NvfuserExecutor(runner=recorded)
    lists: list[list[str | sg.Executor]] = [[CublasExecutor(), fused, "torch"], [fused, "torch"], ["torch"]]
    programs = []
    for executors in lists:
        jitted = sg.jit(Gated(), executors=executors)
        jitted(x)
        owners = Counter(item.implementation.owner for item in lines(forward(jitted)) if item.implementation)
        report = str(sg.explain(jitted).operators())
        assert report.startswith(
            f"executors: {', '.join(one if isinstance(one, str) else one.name for one in executors)}"
        )
        programs.append((owners["cublas"] > 0, owners["nvfuser"], "by nvfuser (in nvfuser_" in report))
    assert programs == [(True, 1, True), (False, 1, True), (False, 0, False)]
