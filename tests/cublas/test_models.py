"""Models of transformers: gradients as eager's, and how many of their layers become one call."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
import transformers

from tests.core.training import backward, forward
from tests.cublas.layers import cublas, own

LAYERS = 2
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 2}


def gemma() -> Any:
    """Feeds forward through a product of GELU (tanh) of one linear layer, without bias, with another."""
    config = transformers.GemmaConfig(**SIZES, num_key_value_heads=2, head_dim=16, intermediate_size=48)
    return transformers.GemmaForCausalLM(config)


def opt() -> Any:
    """Feeds forward through linear, ReLU, linear."""
    config = transformers.OPTConfig(
        **SIZES, ffn_dim=48, word_embed_proj_dim=32, max_position_embeddings=32, dropout=0.0
    )
    return transformers.OPTForCausalLM(config)


def vit() -> Any:
    """The same with GELU, by tanh."""
    config = transformers.ViTConfig(
        **SIZES, intermediate_size=48, image_size=8, patch_size=4, hidden_act="gelu_pytorch_tanh"
    )
    return transformers.ViTForImageClassification(config)


IDS = {"input_ids": torch.tensor([[4, 5, 6, 7, 8, 9]] * 2), "labels": torch.tensor([[4, 5, 6, 7, 8, 9]] * 2)}
IMAGES = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8), "labels": torch.tensor([0, 1])}


@pytest.mark.parametrize(
    ("build", "inputs", "forwards", "dgelus", "bgrads"),
    [
        (gemma, IDS, {"linear_gelu_aux": LAYERS}, 0, 0),
        (opt, IDS, {"linear_relu": LAYERS}, 0, 6 * LAYERS),
        (vit, IMAGES, {"linear_gelu_aux": LAYERS}, LAYERS, 6 * LAYERS + 1),
    ],
)
def test_model_trains(build: Any, inputs: dict[str, Any], forwards: dict[str, int], dgelus: int, bgrads: int) -> None:
    model = build().train()
    twin = copy.deepcopy(model)
    jitted = cublas(model)
    losses = []
    for called in (jitted, twin):
        loss = called(**inputs).loss
        loss.backward()
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1])
    for (name, found), wanted in zip(model.named_parameters(), twin.parameters(), strict=True):
        message = f"the gradient of {name}"
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-4, atol=1e-6, msg=message)
    assert Counter(own(forward(jitted))) == forwards
    found_backwards = Counter(own(backward(jitted)))
    assert found_backwards["matmul_dgelu"] == dgelus
    assert found_backwards["matmul_bgrad"] == bgrads
