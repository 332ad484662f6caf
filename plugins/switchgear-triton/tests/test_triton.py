"""The kernels compared with PyTorch and in a model: on a device, or on a CPU by Triton's interpreter."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from switchgear_triton import TritonExecutor
from torch import Tensor

import switchgear as sg
from switchgear_tools.testing.checks import plugin_checks

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
if not torch.cuda.is_available() and TritonExecutor("triton").unavailable() is not None:
    pytest.skip("no CUDA or ROCm device, and TRITON_INTERPRET=1 is not set", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WITH = ["triton", "torch"]


def owners(function: object, kind: str) -> dict[str, str]:
    """Return the owner of each operator in the last run."""
    return {choice.symbol: choice.owner for choice in sg.last_choices(function) if choice.kind == kind}


CHECKS = dict(plugin_checks("triton"))


@pytest.mark.skipif(DEVICE == "cuda", reason="the kit's samples are on a CPU")
@pytest.mark.parametrize("label", CHECKS)
def test_by_the_kit(label: str) -> None:
    CHECKS[label]()


def llama(dtype: torch.dtype) -> Any:
    """Build a small Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 50}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_llama_as_it_is(dtype: torch.dtype) -> None:
    ids = torch.arange(16, device=DEVICE).reshape(2, 8) * 3
    losses, gradients = [], []
    for executors in (None, WITH):
        model = llama(dtype)
        if executors is not None:
            model = sg.jit(model, executors=executors)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        losses.append(loss.detach())
        gradients.append([parameter.grad for parameter in model.parameters()])
    near = 1e-4 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(*losses, rtol=near, atol=near)
    for first, second in zip(*gradients, strict=True):
        assert (first - second).norm() <= near * first.norm()
    lines = [line.symbol.name for trace in both(model) for line in trace.bound_symbols if by_triton(line)]
    counts = {name: lines.count(name) for name in lines}
    namespace = "switchgear_triton"
    assert counts == {
        f"{namespace}.rms_norm.default": 5,
        f"{namespace}.rope.default": 4,
        f"{namespace}.swiglu.default": 2,
        f"{namespace}.row_losses.default": 1,
        f"{namespace}.row_losses_backward.default": 1,
        f"{namespace}.rms_norm_backward.default": 5,
        f"{namespace}.rope_backward.default": 4,
        f"{namespace}.swiglu_backward.default": 2,
    }


def both(model: Any) -> tuple[sg.Trace, sg.Trace]:
    """Return the programs that run, forward and backward."""
    return sg.last_traces(model)[-1], sg.last_backward_traces(model)[-1]


def by_triton(line: sg.BoundSymbol) -> bool:
    return line.implementation is not None and line.implementation.owner == "triton"


def other_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.cat((-x[..., 2:], x[..., :2]), dim=-1)
    return x * cos + turned * sin


def norm_read_elsewhere(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    squares = x.pow(2)
    return weight * (x * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-5)), squares


@pytest.mark.parametrize(
    ("function", "shapes", "reason"),
    [
        (other_halves, [(1, 2, 3, 6)] * 3, "other halves than of the last dimension"),
        (norm_read_elsewhere, [(4, 6), (6,)], "is returned, or saved"),
        (lambda x, y: F.silu(x) * y, [(4, 6), (6,)], "not laid out alike"),
        (lambda x: F.rms_norm(x, (4, 6), eps=1e-5), [(4, 6)], "over several dimensions"),
        (lambda x: F.cross_entropy(x, x.softmax(-1)), [(4, 6)], "no indices of classes"),
    ],
)
def test_what_is_left_to_pytorch(function: Callable[..., Any], shapes: list[tuple[int, ...]], reason: str) -> None:
    inputs = [torch.linspace(-2, 2, torch.Size(shape).numel(), device=DEVICE).reshape(shape) for shape in shapes]
    jitted = sg.jit(function, executors=WITH)
    torch.testing.assert_close(jitted(*inputs), function(*inputs))
    assert "triton" not in owners(jitted, "execution").values()
    assert reason in str(sg.explain(jitted).operators())


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_many_classes(reduction: str, label_smoothing: float) -> None:
    """Test more classes than a block holds, and ignored rows."""

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits * 1, target, reduction=reduction, label_smoothing=label_smoothing)

    logits = torch.randn(3, 5000, device=DEVICE) * 5
    target = torch.tensor([4999, -100, 7], device=DEVICE)
    outcomes = []
    for function in (loss, sg.jit(loss, executors=WITH)):
        leaf = logits.clone().requires_grad_()
        value = function(leaf, target)
        value.sum().backward()
        outcomes.append((value.detach(), leaf.grad))
    torch.testing.assert_close(*outcomes)


def test_nothing_but_ignored_rows_and_infinite_logits() -> None:
    jitted = sg.jit(F.cross_entropy, executors=WITH)
    logits = torch.full((2, 5), -torch.inf, device=DEVICE)
    logits[0, 1] = 2.0
    for target in ([-100, -100], [1, -100], [2, 1]):
        inputs = logits, torch.tensor(target, device=DEVICE)
        torch.testing.assert_close(jitted(*inputs), F.cross_entropy(*inputs), equal_nan=True)


def test_second_derivatives_are_pytorchs() -> None:
    def penalty(x: Tensor, weight: Tensor) -> Tensor:
        y = F.rms_norm(x, (6,), weight, 1e-5)
        (gradient,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        return gradient.pow(2).sum()

    x = torch.randn(2, 6, dtype=torch.float64, device=DEVICE, requires_grad=True)
    weight = torch.randn(6, dtype=torch.float64, device=DEVICE)
    (expected,) = torch.autograd.grad(penalty(x, weight), x)
    (result,) = torch.autograd.grad(sg.jit(penalty, executors=WITH)(x, weight), x)
    torch.testing.assert_close(result, expected)
