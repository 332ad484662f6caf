"""Parts of PyTorch that models are made of, inside of what is jitted: equal to eager, compiled or said not to be."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.utils import parametrizations, prune
from torch.utils.data import DataLoader, Dataset

import switchgear as sg
from tests.falling_back import falls_back


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))


class Embedded(Dataset[Tensor]):
    """Rows that a model makes in the process that loads them."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        row: Tensor = self.model(torch.full((1, 8), float(index))).detach()[0]
        return row


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked on Unix")
def test_workers_that_are_forked_after_a_step_compile_for_themselves() -> None:
    model = net()
    jitted = sg.jit(model, executors=["torch"])
    jitted(torch.randn(6, 8)).sum().backward()
    threads = torch.get_num_threads()
    loader = DataLoader(Embedded(jitted), batch_size=2, num_workers=1, timeout=60, multiprocessing_context="fork")
    try:
        torch.set_num_threads(1)
        rows = torch.cat(list(loader))
    finally:
        torch.set_num_threads(threads)
    assert torch.allclose(rows, torch.stack([*map(Embedded(model).__getitem__, range(6))]))


def trained(model: Any, steps: int = 3) -> list[Tensor]:
    """The parameters after some steps."""
    torch.manual_seed(1)
    optimiser = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        model(torch.randn(5, 8)).square().mean().backward()
        optimiser.step()
    return [*model.parameters(), *model.buffers()]


def with_weight_norm(model: Any) -> None:
    parametrizations.weight_norm(model[0])


def with_spectral_norm(model: Any) -> None:
    parametrizations.spectral_norm(model[0])


def with_orthogonal(model: Any) -> None:
    parametrizations.orthogonal(model[2])


def with_old_weight_norm(model: Any) -> None:
    torch.nn.utils.weight_norm(model[0])


def with_old_spectral_norm(model: Any) -> None:
    torch.nn.utils.spectral_norm(model[0])


def with_pruning(model: Any) -> None:
    prune.l1_unstructured(model[0], "weight", 0.5)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    "change",
    [
        with_weight_norm,
        with_spectral_norm,
        with_orthogonal,
        with_old_weight_norm,
        with_old_spectral_norm,
        with_pruning,
    ],
)
def test_parametrised_weights_train_as_in_eager(change: Any) -> None:
    model, twin = net(), net()
    for one in (model, twin):
        torch.manual_seed(2)
        change(one)
    jitted = sg.jit(twin, executors=["torch"])
    for found, expected in zip(trained(jitted), trained(model), strict=True):
        assert torch.equal(found, expected)
    assert not sg.cache_info(jitted).fallbacks


def test_pruning_of_what_was_called_before_is_noticed() -> None:
    model = net()
    jitted, x = sg.jit(model, executors=["torch"]), torch.randn(3, 8)
    jitted(x)
    prune.random_unstructured(model[0], "weight", 0.5)
    assert torch.equal(jitted(x), model(x))
    prune.remove(model[0], "weight")
    assert torch.equal(jitted(x), model(x))


def branched(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    return result * 2


def looped(x: Tensor) -> Tensor:
    def smaller(x: Tensor) -> Tensor:
        return x.abs().sum() < 100

    def double(x: Tensor) -> tuple[Tensor]:
        return (x * 2,)

    results: tuple[Tensor] = torch._higher_order_ops.while_loop(smaller, double, (x,))
    return results[0] + 1


def attended(x: Tensor) -> Tensor:
    q = x.reshape(1, 2, 8, 4)
    mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 8, 8, device="cpu")
    result: Tensor = flex_attention(q, q, q, block_mask=mask)
    return result.sin()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("function", [branched, looped, attended])
def test_operators_that_take_functions_are_as_in_eager(function: Any) -> None:
    jitted = sg.jit(function, executors=["torch"], fallback="eager")
    with falls_back(".*"):
        jitted(torch.rand(64))
    for sign in (1, -1, 1):
        x = sign * torch.rand(64)
        assert torch.equal(jitted(x), function(x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_an_encoder_in_eval_with_and_without_padding() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    jitted, x = sg.jit(model, executors=["torch"]), torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        assert torch.equal(jitted(x), model(x))
        with falls_back("it makes a tensor of another kind"):
            assert torch.equal(jitted(x, src_key_padding_mask=padding), model(x, src_key_padding_mask=padding))
    assert torch.equal(jitted(x), model(x))
