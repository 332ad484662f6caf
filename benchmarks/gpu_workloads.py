"""Workloads for a GPU: training steps in bf16, at sizes that fill a GPU.

`Place` sets device and dtype. All values are bf16 values in every dtype, so the same task in float32 shows how far
rounding alone takes a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from benchmarks.workloads import Logits, Mode, Task


@dataclass(frozen=True, slots=True)
class Place:
    """The device, the dtype of parameters and activations, and whether sizes are tiny."""

    device: torch.device
    dtype: torch.dtype
    quick: bool

    def normal(self, *size: int, scale: float = 1.0) -> Tensor:
        """Return normally distributed numbers."""
        return self.rounded(scale * torch.randn(size, device=self.device))

    def rounded(self, tensor: Tensor) -> Tensor:
        """Return values rounded to bf16, in the place's dtype."""
        return tensor.to(torch.bfloat16).to(self.dtype)

    def rounds(self, model: nn.Module) -> nn.Module:
        """Return the model with rounded parameters; buffers, such as the frequencies of RoPE, stay unrounded."""
        for parameter in model.parameters():
            parameter.data = self.rounded(parameter.data)
        return model.train()


#: Builds a task; returns the task and the number of tokens of one call.
Build = Callable[[Place], tuple[Task, int]]


def loss_of(x: Tensor) -> Tensor:
    """Return a loss that needs no target, summed in float32."""
    return x.square().mean(dtype=torch.float32)


def learning(function: Callable[..., Tensor], *tensors: Tensor) -> Task:
    """Return the training of a function whose every argument learns."""
    for tensor in tensors:
        tensor.requires_grad_()
    return Task(Mode.TRAINING, function, tensors, tensors)


def of_language_model(place: Place, model: nn.Module, vocabulary: int, batch: int, length: int) -> tuple[Task, int]:
    """Return the training of a causal language model on random tokens."""
    ids = torch.randint(0, vocabulary, (batch, length), device=place.device)
    trained = place.rounds(Logits(model))
    return Task(Mode.TRAINING, trained, (ids, ids), tuple(trained.parameters())), ids.numel()


def llama(place: Place) -> tuple[Task, int]:
    """Build Llama: 8 layers, 2048 wide, 16 heads (8 of keys), 32000 words; 4 texts of 2048 tokens."""
    layers, width, vocabulary, batch, length = (1, 32, 50, 2, 8) if place.quick else (8, 2048, 32000, 4, 2048)
    config = transformers.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_attention_heads=16 if width > 32 else 4,
        num_key_value_heads=8 if width > 32 else 2,
        vocab_size=vocabulary,
        max_position_embeddings=length,
        use_cache=False,
    )
    with place.device:
        model = transformers.LlamaForCausalLM(config)
    return of_language_model(place, model, vocabulary, batch, length)


def gpt2(place: Place) -> tuple[Task, int]:
    """Build GPT-2 (small): 12 layers, 768 wide, 50304 words; 16 texts of 1024 tokens; no dropout, for equal results."""
    layers, width, vocabulary, batch, length = (1, 24, 50, 2, 8) if place.quick else (12, 768, 50304, 16, 1024)
    config = transformers.GPT2Config(
        n_layer=layers,
        n_head=12,
        n_embd=width,
        vocab_size=vocabulary,
        n_positions=length,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    with place.device:
        model = transformers.GPT2LMHeadModel(config)
    return of_language_model(place, model, vocabulary, batch, length)


def chain(place: Place) -> tuple[Task, int]:
    """Build a chain of pointwise operators, on 16384 x 4096."""
    rows, width = (8, 16) if place.quick else (16384, 4096)

    def function(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = F.gelu(x * weight + bias, approximate="tanh") + residual
        return loss_of(F.silu(y) * torch.tanh(x) + residual)

    tensors = (place.normal(rows, width), place.normal(rows, width), place.normal(width), place.normal(width))
    return learning(function, *tensors), rows


def cross_entropy(place: Place) -> tuple[Task, int]:
    """Build a softmax cross entropy over 128256 words, 8192 tokens."""
    rows, vocabulary = (8, 16) if place.quick else (8192, 128256)
    target = torch.randint(0, vocabulary, (rows,), device=place.device)
    logits = place.normal(rows, vocabulary).requires_grad_()
    return Task(Mode.TRAINING, lambda x, y: F.cross_entropy(x, y), (logits, target), (logits,)), rows


def rms_norm(place: Place) -> tuple[Task, int]:
    """Build a residual and RMSNorm as models write RMSNorm, in float32 inside, on 16384 x 4096."""
    rows, width = (8, 16) if place.quick else (16384, 4096)

    def function(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
        y = x + residual
        exact = y.float()
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6)
        return loss_of(weight * exact.to(y.dtype) + y)

    return learning(function, place.normal(rows, width), place.normal(rows, width), place.normal(width)), rows


def mlp(place: Place) -> tuple[Task, int]:
    """Build a transformer's MLP with gelu (tanh), 2048 to 8192 and back, 16384 tokens."""
    rows, width = (8, 16) if place.quick else (16384, 2048)

    def function(x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor) -> Tensor:
        inner = F.gelu(F.linear(x, first, first_bias), approximate="tanh")
        return loss_of(F.linear(inner, second, second_bias))

    tensors = (
        place.normal(rows, width),
        place.normal(4 * width, width, scale=width**-0.5),
        place.normal(4 * width),
        place.normal(width, 4 * width, scale=(4 * width) ** -0.5),
        place.normal(width),
    )
    return learning(function, *tensors), rows


#: Forward and backward of each workload; the update of the parameters, equal for all, is left out.
WORKLOADS: dict[str, Build] = {
    "llama": llama,
    "gpt2": gpt2,
    "chain": chain,
    "cross_entropy": cross_entropy,
    "rms_norm": rms_norm,
    "mlp": mlp,
}
