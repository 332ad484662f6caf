"""CPU time of a cached call: small functions and modules, without and with gradients, compared with peers."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import switchgear as sg
from benchmarks.measure import Samples, interleave, per_call, table

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """A function and its use; a cached call may take `limit` times the time of the uncompiled function.

    `calls` make up one measurement of some 10 ms: a busy machine disturbs short measurements alike.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    limit: float
    calls: int
    backward: bool = False
    no_grad: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """For each case the candidates: the uncompiled function first, then Switchgear."""

    samples: dict[str, list[Samples]]
    limits: dict[str, float]

    @property
    def ratio(self) -> dict[str, float]:
        """The ratio of a cached call of Switchgear to a call of the uncompiled function, by case."""
        return {name: samples[1].ratio_to(samples[0]) for name, samples in self.samples.items()}

    def __str__(self) -> str:
        return "\n".join(
            f"{name}, cached call\n{table(samples, samples[0], unit='µs')}\n{spread(samples, self.limits[name])}"
            for name, samples in self.samples.items()
        )


def spread(samples: list[Samples], limit: float) -> str:
    """Return one line: the ratio to the uncompiled function, its quartiles over the rounds, and the limit."""
    ratios = [mine / theirs for mine, theirs in zip(samples[1].seconds, samples[0].seconds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    holds = "yes" if middle <= limit else "NO"
    return f"  ratio: {middle:.3f} ({low:.3f} to {high:.3f}), at most {limit:g} wanted: {holds}"


class Scales(nn.Module):
    """A module of 64 small parameters, each used once."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.full((4,), 1 + i / 640)) for i in range(64)])

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the input by all parameters."""
        for scale in self.scales:
            x = x * scale
        return x


class Token(nn.Module):
    """A GPT-2 that takes one token and past keys and values, and returns past and own keys and values."""

    def __init__(self, layers: int, width: int, heads: int, past: int) -> None:
        super().__init__()
        config = transformers.GPT2Config(n_layer=layers, n_head=heads, n_embd=width, vocab_size=200, n_positions=64)
        self.model = transformers.GPT2LMHeadModel(config).eval()
        self.past = [torch.randn(1, heads, past, width // heads) for _ in range(2 * layers)]

    def forward(self, token: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Return the logits, and keys and values by layer."""
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(keys, values, layer)
        output = self.model(input_ids=token, past_key_values=cache, use_cache=True)
        layers = output.past_key_values.layers
        return (output.logits, *[tensor for layer in layers for tensor in (layer.keys, layer.values)])


def add_one(x: Tensor) -> Tensor:
    """Run one operator."""
    return x + 1


def concatenate(parts: list[Tensor]) -> Tensor:
    """Concatenate a hundred arguments."""
    return torch.cat(parts)


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    linears = nn.Sequential(*[nn.Linear(4, 4) for _ in range(32)])
    layers = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)]
    token = Token(layers=4, width=64, heads=4, past=16)
    mlp, x, rows, batch = nn.Sequential(*layers), torch.arange(4.0), torch.randn(2, 4), torch.randn(32, 64)
    return {
        "x + 1": Case(add_one, (x,), 1.25, calls=2000),
        "x + 1, forward and backward": Case(add_one, (x.clone().requires_grad_(),), 1.15, backward=True, calls=400),
        "cat of 100": Case(concatenate, ([torch.randn(2) for _ in range(100)],), 2.0, calls=500),
        "64 scales": Case(Scales(), (x,), 0.5, calls=80),
        "64 scales, forward and backward": Case(Scales(), (x,), 0.75, backward=True, calls=20),
        "32 linear layers": Case(linears, (rows,), 0.5, calls=50),
        "32 linear layers, no_grad": Case(linears, (rows,), 0.75, calls=50, no_grad=True),
        "32 linear layers, forward and backward": Case(linears, (rows,), 0.75, backward=True, calls=20),
        "MLP 3 x 64, forward and backward": Case(mlp, (batch,), 0.9, backward=True, calls=50),
        "GPT-2, 1 token, no_grad": Case(token, (torch.tensor([[5]]), *token.past), 0.5, calls=10, no_grad=True),
    }


def scripted(case: Case) -> Any:
    """Compile the function to TorchScript; a `Token` is traced, because scripting fails."""
    with warnings.catch_warnings(), torch.set_grad_enabled(not case.no_grad):
        # TorchScript is deprecated, and still the cheapest dispatch to compare with
        warnings.simplefilter("ignore")
        if isinstance(case.function, Token):
            return torch.jit.trace(case.function, case.inputs, check_trace=False)
        return torch.jit.script(case.function)


def compilers(case: Case) -> dict[str, Callable[[Any], Any]]:
    """Return the uncompiled function, Switchgear, and the peers that can run here."""
    functions: dict[str, Callable[[Any], Any]] = {
        "uncompiled": lambda function: function,
        "switchgear": sg.jit,
        "switchgear torch": lambda function: sg.jit(function, executors=["torch"]),
        "torch.compile eager": lambda function: torch.compile(function, backend="eager"),
        "TorchScript": lambda function: scripted(case),
    }
    if shutil.which(os.environ.get("CXX", "g++")):  # torch.compile's default backend needs a C++ compiler on a CPU
        functions["torch.compile inductor"] = torch.compile
    return functions


def used(case: Case, function: Callable[..., Any]) -> Call:
    """Return the call to measure, after some warm-up calls and a comparison with the uncompiled function."""
    inputs = case.inputs
    expected = case.function(*inputs)
    grad = torch.ones_like(expected) if case.backward else None

    def call() -> object:
        return function(*inputs).backward(grad) if case.backward else function(*inputs)

    for _ in range(10):
        torch.testing.assert_close(function(*inputs), expected)
        call()
    with contextlib.suppress(TypeError):  # peers raise TypeError
        sg.wait(function)
    call()
    return call


def timed(case: Case, function: Callable[..., Any]) -> Callable[[], float]:
    """Return a function that measures one candidate."""
    with torch.set_grad_enabled(not case.no_grad):
        call = used(case, function)

    def measured() -> float:
        with torch.set_grad_enabled(not case.no_grad):
            for _ in range(case.calls // 5):  # a candidate is not to pay for its predecessor's content of the caches
                call()
            return per_call(call, calls=case.calls, clock=time.process_time)

    return measured


def run(rounds: int) -> Result:
    """Measure every candidate of every case, warm."""
    torch._dynamo.reset()
    samples = {}
    case_table = cases()
    for name, case in case_table.items():
        candidates = {peer: timed(case, make(case.function)) for peer, make in compilers(case).items()}
        samples[name] = interleave(rounds, candidates)
    return Result(samples, {name: case.limit for name, case in case_table.items()})
