"""Small transformers models with random weights, one of each kind that people use, and a batch for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import transformers

Batch = dict[str, torch.Tensor]

BATCH, LENGTH, VOCABULARY, HIDDEN, SIDE = 2, 12, 97, 32, 32


def padded_text() -> Batch:
    """Token ids with themselves as labels, the last of one sequence padding."""
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


def spectrograms() -> Batch:
    """Log-mel features with a text each."""
    return {"input_features": torch.randn(BATCH, 8, 40), "labels": torch.randint(3, VOCABULARY, (BATCH, LENGTH))}


def waves() -> Batch:
    """Sound with a short text each."""
    return {"input_values": torch.randn(BATCH, 800), "labels": torch.randint(3, VOCABULARY, (BATCH, 4))}


def images() -> Batch:
    """Images with a class each."""
    return {"pixel_values": torch.randn(BATCH, 3, SIDE, SIDE), "labels": torch.tensor([1, 0])}


def segmented_images() -> Batch:
    """Images with a class for each pixel."""
    return {"pixel_values": torch.randn(BATCH, 3, SIDE, SIDE), "labels": torch.randint(0, 2, (BATCH, SIDE, SIDE))}


def captioned_images() -> Batch:
    """Images and texts, as many of one as of the other."""
    batch = padded_text()
    return {"pixel_values": images()["pixel_values"], **{name: batch[name] for name in ("input_ids", "attention_mask")}}


@dataclass(frozen=True)
class Kind:
    """A class of models, what its configuration is given, and its batch; whether it writes text.

    `always`: what every call is given beside the batch.
    """

    model: str
    config: str
    options: Mapping[str, object]
    batch: Callable[[], Batch] = padded_text
    generates: bool = False
    always: Mapping[str, object] = field(default_factory=dict)

    def build(self) -> transformers.PreTrainedModel:
        """A model with random weights."""
        config = getattr(transformers, self.config)(**self.options)
        model: transformers.PreTrainedModel = getattr(transformers, self.model)(config)
        return model


_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_PLAIN = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_TEXT = {**_PLAIN, "vocab_size": VOCABULARY, "max_position_embeddings": 128}
_GROUPED = {**_TEXT, **_TOKENS, "num_key_value_heads": 2}
_BOTH = {
    "d_model": HIDDEN,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    **_TOKENS,
}
_GPT = {"n_layer": 2, "n_head": 4, "n_embd": HIDDEN, "n_positions": 128, "vocab_size": VOCABULARY, **_TOKENS}
_SOUND = {
    **_PLAIN,
    "vocab_size": VOCABULARY,
    "conv_dim": (16, 16),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
    "layerdrop": 0.0,
}
_IMAGE = {**_PLAIN, "image_size": SIDE, "patch_size": 8}


def _writer(family: str, options: Mapping[str, object], model: str = "ForCausalLM") -> Kind:
    return Kind(family + model, family + "Config", options, padded_text, True)


def _reader(family: str, options: Mapping[str, object]) -> Kind:
    return Kind(family + "ForMaskedLM", family + "Config", options, padded_text)


def _viewer(family: str, options: Mapping[str, object]) -> Kind:
    return Kind(family + "ForImageClassification", family + "Config", options, images)


KINDS: dict[str, Kind] = {
    "gpt2": _writer("GPT2", _GPT, "LMHeadModel"),
    "llama": _writer("Llama", _GROUPED),
    "mistral": _writer("Mistral", {**_GROUPED, "sliding_window": 64}),
    "mixtral": _writer("Mixtral", {**_GROUPED, "num_local_experts": 4}),
    "qwen2": _writer("Qwen2", _GROUPED),
    "qwen3": _writer("Qwen3", {**_GROUPED, "head_dim": 8}),
    "phi": _writer("Phi", _GROUPED),
    "gemma": _writer("Gemma", {**_GROUPED, "head_dim": 8}),
    "gemma2": _writer("Gemma2", {**_GROUPED, "head_dim": 8, "sliding_window": 64}),
    "opt": _writer(
        "OPT",
        {
            "hidden_size": HIDDEN,
            "num_hidden_layers": 2,
            "ffn_dim": 48,
            "num_attention_heads": 4,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 128,
            "word_embed_proj_dim": HIDDEN,
            **_TOKENS,
        },
    ),
    "bloom": _writer("Bloom", {"hidden_size": HIDDEN, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, **_TOKENS}),
    "gpt-neox": _writer("GPTNeoX", {**_TEXT, **_TOKENS}),
    "gptj": _writer("GPTJ", {**_GPT, "rotary_dim": 4}),
    "falcon": _writer(
        "Falcon",
        {
            "hidden_size": HIDDEN,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": VOCABULARY,
            **_TOKENS,
        },
    ),
    "stablelm": _writer("StableLm", _GROUPED),
    "mamba": _writer(
        "Mamba",
        {"hidden_size": HIDDEN, "num_hidden_layers": 2, "state_size": 8, "vocab_size": VOCABULARY, **_TOKENS},
    ),
    "bert": _reader("Bert", _TEXT),
    "roberta": _reader("Roberta", _TEXT),
    "distilbert": _reader(
        "DistilBert",
        {
            "dim": HIDDEN,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 48,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 128,
        },
    ),
    "albert": _reader("Albert", {**_TEXT, "embedding_size": 16, "hidden_dropout_prob": 0.1}),
    "electra": _reader("Electra", {**_TEXT, "embedding_size": 16}),
    "deberta-v2": _reader("DebertaV2", {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "mpnet": _reader("MPNet", _TEXT),
    "t5": _writer(
        "T5",
        {
            "d_model": HIDDEN,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
            "eos_token_id": 1,
        },
        "ForConditionalGeneration",
    ),
    "bart": _writer("Bart", _BOTH, "ForConditionalGeneration"),
    "pegasus": _writer("Pegasus", _BOTH, "ForConditionalGeneration"),
    "mbart": _writer("MBart", _BOTH, "ForConditionalGeneration"),
    "marian": _writer("Marian", _BOTH, "MTModel"),
    "whisper": Kind(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **_BOTH,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 64,
            "begin_suppress_tokens": None,
            "suppress_tokens": None,
        },
        spectrograms,
        True,
    ),
    "wav2vec2": Kind("Wav2Vec2ForCTC", "Wav2Vec2Config", _SOUND, waves),
    "hubert": Kind("HubertForCTC", "HubertConfig", _SOUND, waves),
    "vit": _viewer("ViT", _IMAGE),
    "deit": _viewer("DeiT", _IMAGE),
    "swin": _viewer(
        "Swin",
        {
            "image_size": SIDE,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
    ),
    "convnext": _viewer("ConvNext", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}),
    "clip": Kind(
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": {**_TEXT, **_TOKENS, "projection_dim": 16},
            "vision_config": {**_IMAGE, "projection_dim": 16},
            "projection_dim": 16,
        },
        captioned_images,
        always={"return_loss": True},
    ),
    "segformer": Kind(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        segmented_images,
    ),
    "beit": _viewer("Beit", _IMAGE),
}
