"""A tiny GPT-2, its batches, and jitting it as the tests of libraries do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import transformers
from torch import Tensor, nn

import switchgear as sg

Wrap = Callable[[nn.Module], nn.Module]
VOCABULARY, LENGTH = 60, 8


def gpt2(n_layer: int = 2, **options: object) -> transformers.GPT2LMHeadModel:
    """Always with the same weights; dropout is on in training."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=n_layer,
        n_head=2,
        n_embd=16,
        vocab_size=VOCABULARY,
        n_positions=32,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **options,
    )
    return transformers.GPT2LMHeadModel(config)


def batch(seed: int, rows: int = 2) -> dict[str, Tensor]:
    """Token ids with themselves as labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (rows, LENGTH), generator=generator)
    return {"input_ids": ids, "labels": ids.clone()}


def itself(module: nn.Module) -> nn.Module:
    """In eager."""
    return module


def jitted(module: nn.Module) -> nn.Module:
    """On the torch executor."""
    return sg.jit(module, executors=["torch"])


def compiled_share(module: nn.Module) -> float:
    """Of its calls, how many did not fall back."""
    info = sg.cache_info(module)
    return 1 - info.fallbacks / info.calls if info.calls else 0.0


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """These tensors are equal to the bit."""
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
