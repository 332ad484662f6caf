"""Pipelines of Transformers over a jitted model, as their users make them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import switchgear as sg

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film", "it", "is", "was", "not"]


def tokenizer() -> Any:
    plain = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[SEP]", "bos_token": "[CLS]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **names)


def classifier() -> Any:
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        vocab_size=len(WORDS),
        max_position_embeddings=32,
    )
    return transformers.BertForSequenceClassification(config)


def writer() -> Any:
    sizes: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": len(WORDS), "n_positions": 64}
    ends = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends))


@pytest.mark.parametrize(
    ("task", "make", "how"),
    [
        ("text-classification", classifier, {"batch_size": 2}),
        ("text-generation", writer, {"max_new_tokens": 6, "do_sample": False}),
    ],
)
def test_answers_are_eagers(task: str, make: Any, how: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    texts = ["it is a good film", "it was not a bad film", "good", "a film"]

    def answers(model: Any) -> Any:
        pipeline: Any = transformers.pipeline(task, model=model, tokenizer=tokenizer(), device="cpu")
        return pipeline(texts, **how)

    expected = answers(model)
    jitted = sg.jit(model, executors=["torch"])
    assert answers(jitted) == expected
    info = sg.cache_info(jitted)
    assert info.calls
    assert not info.fallbacks
