"""`generate` of Transformers as its users call it: each way of decoding, each kind of cache, beside the plain model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import switchgear as sg

VOCABULARY, PROMPT, LENGTH = 97, 5, 12
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def llama(**more: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, **more}))


def mistral() -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, sliding_window=8))


def gemma2() -> Any:
    sizes = {**SIZES, "head_dim": 8, "sliding_window": 8}
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**sizes))


def dynamic_rope() -> Any:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    return llama(rope_parameters=rope, max_position_embeddings=8)


def mamba() -> Any:
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "vocab_size": VOCABULARY}
    return transformers.MambaForCausalLM(transformers.MambaConfig(**sizes, eos_token_id=None, pad_token_id=0))


def bart() -> Any:
    layers = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in BART.items()}
    config = transformers.BartConfig(d_model=32, vocab_size=VOCABULARY, max_position_embeddings=64, **layers)
    return transformers.BartForConditionalGeneration(config)


BART = {"layers": 2, "attention_heads": 2, "ffn_dim": 48}


def whisper() -> Any:
    layers = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in BART.items()}
    config = transformers.WhisperConfig(
        d_model=32,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=64,
        vocab_size=VOCABULARY,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **layers,
    )
    return transformers.WhisperForConditionalGeneration(config)


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "greedy": (llama, {}),
    "sampling": (llama, {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9}),
    "beams": (llama, {"num_beams": 3}),
    "sampled beams": (llama, {"num_beams": 2, "do_sample": True}),
    "no cache": (llama, {"use_cache": False}),
    "static cache": (llama, {"cache_implementation": "static"}),
    "penalties": (llama, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}),
    "sliding window": (mistral, {}),
    "hybrid cache": (gemma2, {}),
    "static hybrid cache": (gemma2, {"cache_implementation": "static"}),
    "dynamic rope": (dynamic_rope, {}),
    "state space": (mamba, {}),
    "encoder and decoder": (bart, {}),
    "encoder and decoder, beams": (bart, {"num_beams": 2}),
}


def outcome(model: Any, batch: int = 2, **how: Any) -> torch.Tensor:
    torch.manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
    tokens: torch.Tensor = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=LENGTH, min_new_tokens=LENGTH, **how
    )
    return tokens


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_eagers(way: str) -> None:
    make, how = WAYS[way]
    torch.manual_seed(0)
    model = make().eval()
    expected = outcome(model, **how)
    jitted = sg.jit(model, executors=["torch"])
    assert torch.equal(outcome(jitted, **how), expected)
    assert torch.equal(outcome(jitted, **how), expected)
    info = sg.cache_info(jitted)
    assert info.hits > info.misses
    assert not info.fallbacks


def test_assisted_decoding() -> None:
    torch.manual_seed(0)
    model, assistant = llama().eval(), llama(num_hidden_layers=1).eval()
    expected = outcome(model, batch=1, assistant_model=assistant)
    jitted, quick = (sg.jit(one, executors=["torch"]) for one in (model, assistant))
    assert torch.equal(outcome(jitted, batch=1, assistant_model=quick), expected)
    assert sg.cache_info(jitted).hits
    assert not sg.cache_info(quick).fallbacks


def test_speech() -> None:
    torch.manual_seed(0)
    model = whisper().eval()
    features = torch.randn(1, 8, 40)
    expected = model.generate(features, max_new_tokens=8)
    jitted = sg.jit(model, executors=["torch"])
    assert torch.equal(jitted.generate(features, max_new_tokens=8), expected)
    assert sg.cache_info(jitted).hits


def test_a_prompt_is_continued_with_its_cache() -> None:
    torch.manual_seed(0)
    model = llama().eval()
    ids = torch.randint(3, VOCABULARY, (1, 6))

    def dialogue(one: Any) -> torch.Tensor:
        cache = transformers.DynamicCache(config=model.config)
        first = one.generate(ids, cache=cache, max_new_tokens=4)
        more = torch.cat([first, ids[:, :3]], dim=1)
        tokens: torch.Tensor = one.generate(more, cache=cache, max_new_tokens=4)
        return tokens

    assert torch.equal(dialogue(sg.jit(model, executors=["torch"])), dialogue(model))
