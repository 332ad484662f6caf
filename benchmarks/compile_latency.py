"""The time to the first training result: construct, capture, differentiate, run forward and backward once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers

import switchgear as sg
from benchmarks.measure import Samples, interleave, table, verdict
from switchgear_core.grad import derived
from switchgear_core.torch_private import clear_fake_results

#: The longest time, as a fraction of the peer's.
LIMIT = 0.12
#: The largest difference of the time per layer between the first and the second stretch of `DEPTHS`, as a fraction.
LINEARITY = 0.2
LAYERS = 12
DEPTHS = (2, 24, 48)
VOCABULARY, LENGTH = 100, 16

Compile = Callable[[torch.nn.Module], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Result:
    """`peers`: Switchgear, then torch.compile, then eager; `depths`: Switchgear at each of `DEPTHS`."""

    peers: list[Samples]
    depths: list[Samples]

    @property
    def ratio(self) -> float:
        """The ratio of Switchgear's time to torch.compile's."""
        return self.peers[0].ratio_to(self.peers[1])

    @property
    def per_layer(self) -> tuple[float, float]:
        """Seconds per layer in the first and in the second stretch of `DEPTHS`."""
        return per_layer(self.depths, DEPTHS)

    @property
    def deviation(self) -> float:
        """The difference of the second stretch from the first, as a fraction."""
        first, second = self.per_layer
        return abs(second / first - 1)

    def __str__(self) -> str:
        first, second = (1e3 * seconds for seconds in self.per_layer)
        return "\n".join(
            [
                f"first training result of a GPT-2 of {LAYERS} layers, width 32",
                table(self.peers, self.peers[1], unit="s"),
                verdict("ratio", self.ratio, LIMIT),
                "the same by depth, Switchgear alone",
                table(self.depths, self.depths[0], unit="s"),
                "  per layer: {:.2f} ms from {} to {}, {:.2f} ms from {} to {}".format(
                    first, *DEPTHS[:2], second, *DEPTHS[1:]
                ),
                verdict("deviation", self.deviation, LINEARITY),
            ]
        )


def per_layer(samples: Sequence[Samples], depths: Sequence[int]) -> tuple[float, float]:
    """Return seconds per layer in the first and in the second stretch of three depths."""
    low, middle, high = (item.median for item in samples)
    return (middle - low) / (depths[1] - depths[0]), (high - middle) / (depths[2] - depths[1])


def gpt2(layers: int) -> torch.nn.Module:
    """Return a fresh GPT-2 of tiny width."""
    config = transformers.GPT2Config(
        n_layer=layers, n_head=2, n_embd=32, vocab_size=VOCABULARY, n_positions=LENGTH, bos_token_id=0, eos_token_id=0
    )
    config.use_cache = False
    model: torch.nn.Module = transformers.GPT2LMHeadModel(config)
    return model.train()


def switchgear(model: torch.nn.Module) -> Callable[..., Any]:
    """Compile with Switchgear, the candidate."""
    jitted: Callable[..., Any] = sg.jit(model, executors=["torch"])
    return jitted


def aot_eager(model: torch.nn.Module) -> Callable[..., Any]:
    """Compile with the peer: equal work (capture, differentiate, partition), and PyTorch's own kernels at the end."""
    compiled: Callable[..., Any] = torch.compile(model, backend="aot_eager")
    return compiled


def eager(model: torch.nn.Module) -> Callable[..., Any]:
    """Return the model itself, the lower bound."""
    return model


COMPILERS: dict[str, Compile] = {"switchgear": switchgear, "torch.compile": aot_eager, "eager": eager}


def first_result(compiler: Compile, layers: int) -> float:
    """Return the seconds from a fresh model to its first gradients, after clearing all caches."""
    forget()
    model = gpt2(layers)
    ids = torch.randint(0, VOCABULARY, (2, LENGTH))
    start = time.perf_counter()
    compiler(model)(input_ids=ids, labels=ids).loss.backward()
    seconds = time.perf_counter() - start
    if any(parameter.grad is None for parameter in model.parameters()):
        raise RuntimeError(f"{compiler.__name__} left a parameter without a gradient")
    return seconds


def forget() -> None:
    """Empty every cache that outlives a compiled function, so that a first result gains nothing from earlier rounds."""
    torch._dynamo.reset()
    derived.clear_templates()
    clear_fake_results()


def run(rounds: int) -> Result:
    """Measure; one uncounted round at a small depth goes first and loads modules that are loaded on first use."""
    transformers.logging.set_verbosity_error()
    for compiler in COMPILERS.values():
        first_result(compiler, 1)
    peers = interleave(rounds, {name: measurement(compiler, LAYERS) for name, compiler in COMPILERS.items()})
    depths = interleave(rounds, {f"{depth} layers": measurement(switchgear, depth) for depth in DEPTHS})
    return Result(peers, depths)


def measurement(compiler: Compile, layers: int) -> Callable[[], float]:
    """Return a function that measures `first_result` of a compiler and a number of layers."""
    return lambda: first_result(compiler, layers)
