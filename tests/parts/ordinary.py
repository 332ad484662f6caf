"""Ordinary models, each with what changes between its calls; `compare` runs one beside its twin in eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg


class Counter(nn.Module):
    """Counts its calls, and scales by an attribute and an entry of a dict that its user changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.steps = 0
        self.scale = 1.0
        self.config = {"shift": 0.5, "log": []}

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        y: Tensor = self.linear(x) * self.scale + self.config["shift"]
        return y


class Scaled(nn.Module):
    """Reads an attribute and a dict, and writes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = 1.0
        self.config = {"shift": 0.5}

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) * self.scale + self.config["shift"]
        return y


class Remembering(nn.Module):
    """Keeps its last result in a list on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) + sum(self.seen[-1:], torch.zeros(4))
        self.seen.append(y.detach())
        return y


class Cached(nn.Module):
    """Writes to rows of a buffer, as decoding does."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(6, 4))
        self.position = 0

    def forward(self, x: Tensor) -> Tensor:
        self.cache[self.position] = self.linear(x).detach().mean(0)
        self.position += 1
        y: Tensor = self.linear(x)
        return y + self.cache.sum(0)


class Branching(nn.Module):
    """Branches on data, and on the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if self.training and y.sum() > 0:
            return y * 2
        return y - 1


def gpt2() -> Any:
    import transformers

    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def lstm() -> nn.Module:
    return nn.LSTM(4, 4, batch_first=True)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 4))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())


def weighted(factors: list[float]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        return F.softmax(x * factors[0], -1) * len(factors)

    return function


@dataclass(frozen=True)
class Case:
    """A model or a function, its inputs in turn, and what happens to it before each further call."""

    make: Callable[[], Any]
    shapes: tuple[tuple[int, ...], ...] = ((3, 4),) * 4
    change: Callable[[Any, int], object] = lambda made, number: None


def _tune(module: Any, number: int) -> None:
    module.scale = float(number)
    module.config["shift"] = number // 2


class Closure:
    """A function with a list that its closure holds."""

    def __init__(self) -> None:
        self.factors = [1.0]
        self.function = weighted(self.factors)


CASES = {
    "mlp": Case(mlp),
    "cnn": Case(cnn, ((2, 1, 8, 8),) * 3),
    "encoder": Case(encoder, ((2, 3, 4),) * 3),
    "lstm": Case(lstm, ((2, 3, 4), (2, 3, 4), (2, 5, 4))),
    "gpt2": Case(gpt2, ((2, 5), (2, 5), (2, 6))),
    "a counter on self": Case(Counter),
    "a changed attribute and a dict": Case(Scaled, change=_tune),
    "a counter, an attribute and a dict": Case(Counter, change=_tune),
    "a list on self": Case(Remembering),
    "rows of a buffer": Case(Cached),
    "a branch on data": Case(Branching, change=lambda module, number: module.train(number % 2 == 0)),
    "sizes": Case(Scaled, ((2, 4), (3, 4), (5, 4), (7, 4))),
    "a closure": Case(Closure, change=lambda made, number: made.factors.append(float(number))),
}


def outcomes(case: Case, made: Any, run: Callable[..., Any]) -> Iterator[list[Tensor]]:
    """Results and gradients of each call."""
    for number, shape in enumerate(case.shapes):
        if number:
            case.change(made, number)
        torch.manual_seed(number)
        x = torch.randint(0, 16, shape) if case.make is gpt2 else torch.randn(shape)
        parameters = [*made.parameters()] if isinstance(made, nn.Module) else [x.requires_grad_()]
        result: Any = run(x)
        result = result.logits if case.make is gpt2 else result[0] if case.make is lstm else result
        gradients = torch.autograd.grad(result.square().sum(), parameters, allow_unused=True)
        yield [result.detach(), *(g for g in gradients if g is not None)]


def state(made: Any) -> object:
    """The Python state of a model, as text."""
    if not isinstance(made, nn.Module):
        return made.factors
    own = {name: value for name, value in vars(made).items() if not name.startswith("_")}
    return str(own), {name: value.tolist() for name, value in made.named_buffers()}


def compare(name: str) -> Any:
    """Run a case jitted and in eager mode, compare bit by bit, and return the jitted function."""
    case = CASES[name]
    torch.manual_seed(0)
    made = case.make()
    twin = Closure() if isinstance(made, Closure) else copy.deepcopy(made)
    jitted = sg.jit(made.function if isinstance(made, Closure) else made, executors=["torch"])
    pairs = zip(
        outcomes(case, made, jitted),
        outcomes(case, twin, twin.function if isinstance(twin, Closure) else twin),
        strict=True,
    )
    for number, (ours, eagers) in enumerate(pairs):
        assert len(ours) == len(eagers)
        assert all(map(torch.equal, ours, eagers)), (name, number)
    assert state(made) == state(twin), name
    return jitted
