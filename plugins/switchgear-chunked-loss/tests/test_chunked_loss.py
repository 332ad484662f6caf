"""The loss and its gradients compared with eager, alone and in unmodified models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from switchgear_chunked_loss import operators
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import switchgear as sg

TAKEN = "switchgear_chunked_loss.linear_cross_entropy.default: pattern by chunked_loss"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "LOGITS", 64)


def arguments(dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "x": torch.randn(3, 7, 5, dtype=dtype, requires_grad=True),
        "weight": torch.randn(11, 5, dtype=dtype, requires_grad=True),
        "bias": torch.randn(11, dtype=dtype, requires_grad=True),
    }


TARGET = torch.tensor([[0, 3, -100, 10, 2, 2, 7], [-100, 1, 5, 5, 9, 8, -100], [4, 4, 4, 6, 1, 0, 3]])


def outcome(function: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    loss = function(**inputs)
    (loss * 3).backward()
    return [loss.detach(), *(tensor.grad for tensor in inputs.values() if tensor.grad is not None)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label_smoothing": 0.1},
        {"reduction": "sum"},
        {"ignore_index": 2},
        {"label_smoothing": 0.3, "reduction": "sum"},
    ],
    ids=str,
)
def test_loss_and_gradients(options: dict[str, Any], bias: bool) -> None:
    target = TARGET if "ignore_index" not in options else TARGET.clamp(min=0)

    def loss(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.cross_entropy(F.linear(x, weight, bias).view(-1, 11), target.view(-1), **options)

    inputs = [{k: v for k, v in arguments().items() if bias or k != "bias"} for _ in range(2)]
    jitted = sg.jit(loss, executors=["chunked_loss", "torch"])
    for result, expected in zip(outcome(jitted, inputs[0]), outcome(loss, inputs[1]), strict=True):
        torch.testing.assert_close(result, expected)
    assert TAKEN in str(sg.explain(jitted).operators())
    with torch.no_grad():
        torch.testing.assert_close(jitted(**inputs[0]), loss(**inputs[0]))


def test_lower_precision() -> None:
    def loss(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight, bias).float().view(-1, 11), TARGET.view(-1))

    jitted = sg.jit(loss, executors=["chunked_loss", "torch"])
    inputs = [arguments(torch.bfloat16) for _ in range(2)]
    for result, expected in zip(outcome(jitted, inputs[0]), outcome(loss, inputs[1]), strict=True):
        torch.testing.assert_close(result, expected, atol=0.05, rtol=0.05)
    assert TAKEN in str(sg.explain(jitted).operators())


WITH_SUMS = TAKEN.replace("cross_entropy", "cross_entropy_and_sums")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "reduction": "sum"}], ids=str)
def test_z_loss(options: dict[str, Any], bias: bool) -> None:
    def loss(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        logits = F.linear(x, weight, bias)
        entropy = F.cross_entropy(logits.view(-1, 11), TARGET.view(-1), **options)
        return entropy + 0.1 * logits.logsumexp(-1).pow(2).mean()

    inputs = [{k: v for k, v in arguments().items() if bias or k != "bias"} for _ in range(2)]
    jitted = sg.jit(loss, executors=["chunked_loss", "torch"])
    for result, expected in zip(outcome(jitted, inputs[0]), outcome(loss, inputs[1]), strict=True):
        torch.testing.assert_close(result, expected)
    assert WITH_SUMS in str(sg.explain(jitted).operators())


def test_z_loss_of_bamba_as_it_is() -> None:
    from transformers import BambaConfig, BambaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 96}
    heads: dict[str, Any] = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attn_layer_indices": [0],
        "mamba_n_heads": 8,
    }
    ids, outcomes = torch.arange(32).reshape(2, 16), []
    for jit in (False, True):
        torch.manual_seed(0)
        model = BambaForCausalLM(BambaConfig(**sizes, **heads, z_loss_coefficient=0.1)).train()
        function: Any = lambda ids, model=model: model(input_ids=ids, labels=ids, use_cache=False).loss  # noqa: E731
        jitted = sg.jit(function, executors=["chunked_loss", "torch"]) if jit else function
        loss = jitted(ids)
        loss.backward()
        outcomes.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-4, atol=1e-5)
    assert WITH_SUMS in str(sg.explain(jitted).operators())


def test_sums_that_are_left_to_pytorch() -> None:
    """Leave the sums to PyTorch where the loss is read before the sums exist."""

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        logits = F.linear(x[0], weight)
        doubled = F.cross_entropy(logits, TARGET[2]).sin()
        return doubled + logits.logsumexp(-1).sum()

    jitted = sg.jit(loss, executors=["chunked_loss", "torch"])
    inputs = {k: v for k, v in arguments().items() if k != "bias"}
    torch.testing.assert_close(jitted(**inputs), loss(**inputs))
    assert "is read before all of it is made" in str(sg.explain(jitted).operators())


def test_nothing_is_counted() -> None:
    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight).view(-1, 11), torch.full((21,), -100))

    jitted = sg.jit(loss, executors=["chunked_loss", "torch"])
    inputs = [{k: v for k, v in arguments().items() if k != "bias"} for _ in range(2)]
    for result, expected in zip(outcome(jitted, inputs[0]), outcome(loss, inputs[1]), strict=True):
        torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda z, t: (F.cross_entropy(z, t), z), "is returned, or saved"),
        (lambda z, t: F.cross_entropy(z, t) + z.sum(), "is read elsewhere too"),
        (lambda z, t: F.cross_entropy(z, t, reduction="none").sum(), "reduction='none'"),
        (lambda z, t: F.cross_entropy(z, t, weight=torch.ones(11, dtype=z.dtype)), "class weights"),
        (lambda z, t: F.cross_entropy(z, torch.softmax(z.detach(), -1)), "probabilities"),
    ],
)
def test_what_is_left_as_it_is(function: Any, reason: str) -> None:
    def loss(x: Tensor, weight: Tensor) -> Any:
        return function(F.linear(x[0], weight), TARGET[2])

    jitted = sg.jit(loss, executors=["chunked_loss", "torch"])
    inputs = {k: v for k, v in arguments().items() if k != "bias"}
    result, expected = jitted(**inputs), loss(**inputs)
    torch.testing.assert_close(result, expected)
    assert reason in str(sg.explain(jitted).operators())


MODELS: dict[str, Any] = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=96, n_positions=32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    ),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2,
            hidden_size=32,
            intermediate_size=64,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=96,
            max_position_embeddings=32,
        )
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_train_on_eagers_curve(name: str) -> None:
    curves = []
    for jit in (False, True):
        torch.manual_seed(0)
        model = MODELS[name]().train()
        function: Any = lambda ids, model=model: model(input_ids=ids, labels=ids).loss  # noqa: E731
        jitted = sg.jit(function, executors=["chunked_loss", "torch"]) if jit else function
        optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
        curve = []
        for step in range(50):
            ids = torch.arange(2 * 16).reshape(2, 16).mul(step % 5 + 1).remainder(96)
            loss = jitted(ids)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            curve.append(loss.item())
        curves.append(curve)
        if jit:
            assert TAKEN in str(sg.explain(jitted).operators())
    assert curves[1][-1] < curves[1][0] - 0.5
    assert max(abs(first - second) for first, second in zip(*curves, strict=True)) < 1e-4


def test_by_the_kit() -> None:
    from switchgear import testing

    testing.check_plugin("chunked_loss")


def test_it_takes_part_under_the_default() -> None:
    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight).view(-1, 11), TARGET.view(-1))

    jitted = sg.jit(loss)
    inputs = [{k: v for k, v in arguments().items() if k != "bias"} for _ in range(2)]
    for result, expected in zip(outcome(jitted, inputs[0]), outcome(loss, inputs[1]), strict=True):
        torch.testing.assert_close(result, expected)
    assert TAKEN in str(sg.explain(jitted).operators())
