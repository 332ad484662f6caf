"""Workloads: models and functions of different shapes, each as inference and as training.

A workload is built separately for every contestant, from the same seed: the same values, in tensors of its own.
"""

from __future__ import annotations

import copy
import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from examples.whole_step import BETA1, BETA2, EPS, LR, WEIGHT_DECAY, State, adamw

Function = Callable[..., Tensor]


class Mode(enum.StrEnum):
    """The kind of one call of a workload."""

    INFERENCE = "inference"  # under no_grad
    FORWARD = "forward"  # a forward that could be differentiated, and is not
    TRAINING = "training"  # forward and backward
    STEP = "step"  # forward, gradients and update, as one function


@dataclass(frozen=True, slots=True)
class Task:
    """A workload with its tensors.

    learned: the tensors that get gradients, or are updated. ordinary: the task as written for eager mode, if different
    from `function`. tolerance: the largest distance of results from eager's, relative to the greatest element of each
    tensor, for contestants whose results need not be equal.
    """

    mode: Mode
    function: Function
    arguments: tuple[Any, ...]
    learned: tuple[Tensor, ...] = ()
    ordinary: Function | None = None
    tolerance: float = 1e-3

    def forward(self, function: Function) -> Tensor:
        """Run the call alone, without a backward."""
        if self.mode is Mode.INFERENCE:
            with torch.no_grad():
                return function(*self.arguments)
        return function(*self.arguments)

    def run(self, function: Function) -> Tensor:
        """Run the whole task."""
        result = self.forward(function)
        if self.mode is Mode.TRAINING:
            for tensor in self.learned:
                tensor.grad = None
            result.backward()
        return result

    def results(self, returned: Tensor) -> list[Tensor]:
        """Return copies of everything that one run computes."""
        tensors = [returned]
        if self.mode is Mode.TRAINING:
            tensors += [tensor.grad for tensor in self.learned if tensor.grad is not None]
        elif self.mode is Mode.STEP:
            tensors += self.learned
        return [tensor.detach().clone() for tensor in tensors]


#: Builds a task from a mode and whether sizes are tiny.
Build = Callable[[Mode, bool], Task]


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload in one mode; `name` is both, with a slash between them."""

    name: str
    mode: Mode
    build: Build

    def task(self, quick: bool) -> Task:
        """Return the task with fresh tensors, equal each time."""
        torch.manual_seed(0)
        return self.build(self.mode, quick)


class Loss(nn.Module):
    """A model with a loss of its output, so that both are compiled."""

    def __init__(self, model: nn.Module, loss: Function) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, x: Tensor, *target: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self.model(x), *target)


def of_model(mode: Mode, model: nn.Module, loss: Function, *arguments: Tensor) -> Task:
    """Return inference of a model, or its training with a loss of the output and of the arguments after the first."""
    if mode is Mode.INFERENCE:
        return Task(mode, model.eval(), arguments[:1])
    return Task(mode, Loss(model.train(), loss), arguments, tuple(model.parameters()))


def mean_square(x: Tensor) -> Tensor:
    """Return a loss that needs no target."""
    return x.square().mean()


def chain(mode: Mode, quick: bool) -> Task:
    """Build a chain of pointwise operators and a layer norm, over 4M elements."""
    rows, width = (8, 16) if quick else (4096, 1024)
    x, residual = torch.randn(rows, width), torch.randn(rows, width)
    weight, bias = torch.rand(width) + 0.5, torch.randn(width)

    def function(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = F.layer_norm(F.gelu(x * weight + bias) + residual, (width,), weight, bias)
        y = torch.sigmoid(y) * y + residual
        return y if mode is Mode.INFERENCE else mean_square(y)

    learned = () if mode is Mode.INFERENCE else (x, residual, weight, bias)
    for tensor in learned:
        tensor.requires_grad_()
    return Task(mode, function, (x, residual, weight, bias), learned)


def cross_entropy(mode: Mode, quick: bool) -> Task:
    """Build a softmax cross entropy over a vocabulary of 32000."""
    rows, classes = (8, 16) if quick else (2048, 32000)
    logits, target = torch.randn(rows, classes), torch.randint(0, classes, (rows,))
    if mode is Mode.INFERENCE:
        return Task(mode, lambda x, y: F.cross_entropy(x, y), (logits, target))
    return Task(mode, lambda x, y: F.cross_entropy(x, y), (logits.requires_grad_(), target), (logits,))


def mlp(mode: Mode, quick: bool) -> Task:
    """Build three linear layers of 64 with relu, batch 32; a step updates the layers by AdamW."""
    width, batch = (8, 4) if quick else (64, 32)
    x, target = torch.randn(batch, width), torch.randint(0, width, (batch,))
    linear = functools.partial(nn.Linear, width, width)
    model = nn.Sequential(linear(), nn.ReLU(), linear(), nn.ReLU(), linear())
    if mode is not Mode.STEP:
        return of_model(mode, model, F.cross_entropy, x, target)
    parameters: list[Tensor] = list(model.parameters())
    zeros = [torch.zeros_like(tensor, requires_grad=False) for tensor in parameters]
    state = State(parameters, zeros, copy.deepcopy(zeros), [torch.zeros(()) for _ in parameters])
    optimizer = torch.optim.AdamW(parameters, lr=LR, betas=(BETA1, BETA2), eps=EPS, weight_decay=WEIGHT_DECAY)
    return Task(
        mode, mlp_step, (state, x, target), tuple(parameters), functools.partial(ordinary_step, model, optimizer)
    )


def mlp_step(state: State, x: Tensor, target: Tensor) -> Tensor:
    """Run one training step as one function; return the loss before the step."""
    pairs = list(zip(state.parameters[::2], state.parameters[1::2], strict=True))
    for weight, bias in pairs[:-1]:
        x = F.relu(F.linear(x, weight, bias))
    loss = F.cross_entropy(F.linear(x, *pairs[-1]), target)
    gradients = torch.autograd.grad(loss, state.parameters)
    with torch.no_grad():
        adamw(state, gradients)
    return loss.detach()


def ordinary_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: State, x: Tensor, target: Tensor
) -> Tensor:
    """Run the step with the backward and the optimizer of PyTorch."""
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), target)
    loss.backward()
    optimizer.step()
    return loss.detach()


class Logits(nn.Module):
    """A causal language model of transformers that returns its logits, or with labels its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return logits or loss."""
        output = self.model(input_ids=ids, labels=labels)
        result: Tensor = output.logits if labels is None else output.loss
        return result


def gpt2(mode: Mode, quick: bool) -> Task:
    """Build GPT-2, 6 layers, 384 wide, 65 characters, T=256, B=4; no dropout, for equal results."""
    layers, width, length, batch = (2, 24, 8, 2) if quick else (6, 384, 256, 4)
    config = transformers.GPT2Config(
        n_layer=layers,
        n_head=6,
        n_embd=width,
        vocab_size=65,
        n_positions=length,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = Logits(transformers.GPT2LMHeadModel(config))
    ids = torch.randint(0, config.vocab_size, (batch, length))
    if mode is Mode.INFERENCE:
        return Task(mode, model.eval(), (ids,))
    return Task(mode, model.train(), (ids, ids), tuple(model.parameters()))


class Hidden(nn.Module):
    """A model of transformers that takes embeddings, and returns its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, embedded: Tensor) -> Tensor:
        """Return the last hidden state."""
        state: Tensor = self.model(inputs_embeds=embedded).last_hidden_state
        return state


def llama(mode: Mode, quick: bool) -> Task:
    """Build Llama's blocks (RMSNorm, RoPE, SwiGLU, SDPA), 4 layers, 512 wide, T=512."""
    layers, width, length = (1, 32, 8) if quick else (4, 512, 512)
    config = transformers.LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=8,
        max_position_embeddings=length,
        use_cache=False,
    )
    model = transformers.LlamaModel(config)
    model.embed_tokens = nn.Identity()  # embeddings are the input: every remaining parameter gets a gradient
    # the mean square of an RMSNorm's output is a constant, whose gradients are noise
    x, target = torch.randn(1, length, width), torch.randn(1, length, width)
    return of_model(mode, Hidden(model), F.mse_loss, x, target)


class Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, padding=1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        return F.relu(x + self.layers(x))


def resnet(mode: Mode, quick: bool) -> Task:
    """Build two blocks of ResNet-50's first stage: 256 channels of 56 x 56, 64 inside, batch 4."""
    channels, inner, size, batch = (8, 4, 6, 2) if quick else (256, 64, 56, 4)
    model = nn.Sequential(Bottleneck(channels, inner), Bottleneck(channels, inner))
    task = of_model(mode, model, mean_square, torch.randn(batch, channels, size, size))
    # among millions of relu arguments, one within rounding of 0 may pass or not, and moves gradients by half a percent
    return replace(task, tolerance=2e-2)


class Sum(nn.Module):
    """A module that adds its parameters up, so that fetching and guarding parameters is most of the work."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.terms = nn.ParameterList([nn.Parameter(torch.randn(16)) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        for term in self.terms:
            x = x + term
        return x


def parameters(count: int, mode: Mode, quick: bool) -> Task:
    """Build a module with many small parameters."""
    return of_model(mode, Sum(min(count, 16) if quick else count), mean_square, torch.randn(16))


BOTH = (Mode.TRAINING, Mode.INFERENCE)
_BUILDS: dict[str, tuple[Build, tuple[Mode, ...]]] = {
    "chain": (chain, BOTH),
    "cross_entropy": (cross_entropy, BOTH),
    "mlp": (mlp, (Mode.FORWARD, Mode.TRAINING, Mode.STEP, Mode.INFERENCE)),
    "gpt2": (gpt2, BOTH),
    "llama": (llama, BOTH),
    "resnet": (resnet, BOTH),
    **{f"parameters{count}": (functools.partial(parameters, count), BOTH) for count in (4, 64, 400)},
}
#: Every workload in every mode, by `workload/mode`.
WORKLOADS = {
    f"{name}/{mode}": Workload(f"{name}/{mode}", mode, build)
    for name, (build, modes) in _BUILDS.items()
    for mode in modes
}
