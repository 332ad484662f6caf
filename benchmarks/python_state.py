"""The cost of Python state: guards of a cached call, first calls, and TorchDynamo in front, each with its alternative.

Guards are timed as the check of an entry's Python state alone. A first call is measured with the feature and, where
possible, without. A split function is compared with `torch.compile(backend="aot_eager")` on the same function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import switchgear as sg
from benchmarks.compile_latency import first_result, forget, gpt2
from benchmarks.measure import Samples, interleave, per_call, table, verdict
from switchgear_python_state.handler import PythonState
from switchgear_runtime.last_call import last_entry

#: The most microseconds of guards in a call.
GUARDS = {"GPT-2": 12.0, "Llama": 12.0, "BERT": 12.0, "a small module": 0.5}
#: The highest ratios of first calls: with the feature to without; split to torch.compile; around a jitted module to a
#: plain one.
CAPTURE, SPLIT, AROUND = 1.08, 1.3, 1.3
#: The highest ratio of a cached call to a call without the guarded objects; the most seconds of a first call.
BESIDE, FIRST = 1.5, 10.0
LAYERS = 12
IDS = torch.arange(32).reshape(2, 16)


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of every measurement."""

    guards: dict[str, float]
    capture: list[Samples]
    split: list[Samples]
    around: list[Samples]
    scale: dict[str, Scale]

    @property
    def ratio(self) -> dict[str, float]:
        """The ratio of the first to the second of each pair."""
        pairs = {"capture": self.capture, "split": self.split, "around": self.around}
        ratios = {name: samples[0].ratio_to(samples[1]) for name, samples in pairs.items()}
        return ratios | {name: scale.hit / scale.without for name, scale in self.scale.items()}

    def __str__(self) -> str:
        lines = [f"guards on Python state, cached call, {LAYERS} layers"]
        for name, seconds in self.guards.items():
            lines.append(verdict(f"{name}, µs", 1e6 * seconds, GUARDS[name]))
        for what, samples, limit in (
            (f"first training result of a GPT-2 of {LAYERS} layers", self.capture, CAPTURE),
            ("first call of a function that is split", self.split, SPLIT),
            ("torch.compile of a function that calls a module, first call", self.around, AROUND),
        ):
            lines += [what, table(samples, samples[1], unit="s")]
            lines.append(verdict("ratio", samples[0].ratio_to(samples[1]), limit))
        for name, scale in self.scale.items():
            lines.append(verdict(f"{name}, hit by that without", scale.hit / scale.without, BESIDE))
            lines.append(verdict(f"{name}, first call, s", scale.first, FIRST))
            lines.append(verdict(f"{name}, second call by the first", scale.second / scale.first, 1.0))
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Scale:
    """Seconds of the first two calls, of a cached call, and of a cached call without the guarded objects."""

    first: float
    second: float
    hit: float
    without: float


class Holder(nn.Module):
    """A module that reads one of many words, and uses none of its many parameters."""

    def __init__(self, words: int, parameters: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(128, 128) for _ in range(12)])
        self.words = [f"word {n}" for n in range(words)]
        self.unread = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(parameters)])

    def forward(self, x: Tensor) -> Tensor:
        """Return an output that depends on the length of one word."""
        return self.layers(x) * len(self.words[7])  # type: ignore[no-any-return]


def closures(count: int) -> Callable[[Tensor], Tensor]:
    """Return a function that calls others, each with a variable of its own."""

    def scaling(scale: float) -> Callable[[Tensor], Tensor]:
        return lambda x: x * scale

    scales = [scaling(float(n)) for n in range(count)]

    def call(x: Tensor) -> Tensor:
        for closure in scales:
            x = closure(x)
        return x

    return call


def constants(count: int) -> Callable[[Tensor], Tensor]:
    """Return the function of `closures` with the numbers as constants in the code."""
    space: dict[str, Any] = {}
    lines = [f"    x = x * {float(n)}" for n in range(count)]
    exec("\n".join(["def call(x):", *lines, "    return x"]), space)
    return space["call"]  # type: ignore[no-any-return]


def in_turn(function: Any, batches: list[Tensor], rounds: int) -> Scale:
    """Measure calls with each batch in turn, each compiled separately."""
    jitted = sg.jit(function, executors=["torch"], dynamic=False, recompile_limit=1000, cache_size=1000)
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        jitted(batches[0])
        seconds.append(time.perf_counter() - start)

    def turn() -> None:
        for batch in batches:
            jitted(batch)

    turn()
    hit = min(per_call(turn, calls=max(1, 200 // len(batches))) for _ in range(rounds)) / len(batches)
    return Scale(seconds[0], seconds[1], hit, hit)


def scales(rounds: int) -> dict[str, Scale]:
    """Measure functions whose Python objects grow, each paired with a function without these objects."""
    batch, kinds = [torch.randn(32, 128)], [torch.randn(n + 2, 128) for n in range(64)]
    pairs = {
        "a list of 100,000": ((Holder(100_000, 0), batch), (Holder(10, 0), batch)),
        "20,000 parameters": ((Holder(10, 20_000), batch), (Holder(10, 0), batch)),
        "5,000 unread parameters": ((Holder(10, 5_000), batch), (Holder(10, 0), batch)),
        "100 closures' cells": ((closures(100), batch), (constants(100), batch)),
        "64 kinds in turn": ((Holder(10, 0), kinds), (Holder(10, 0), kinds[30:31])),
    }
    results = {}
    with torch.no_grad():
        for name, (large, small) in pairs.items():
            scale, without = in_turn(*large, rounds), in_turn(*small, rounds)
            results[name] = replace(scale, without=without.hit)
    return results


def models() -> dict[str, tuple[nn.Module, dict[str, Tensor]]]:
    """Return the models by name, each with the arguments of a call."""
    llama = transformers.LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=100,
        use_cache=False,
    )
    bert = transformers.BertConfig(
        num_hidden_layers=LAYERS, hidden_size=32, intermediate_size=64, num_attention_heads=2, vocab_size=100
    )
    small = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 16))
    return {
        "GPT-2": (gpt2(LAYERS), {"input_ids": IDS}),
        "Llama": (transformers.LlamaForCausalLM(llama), {"input_ids": IDS}),
        "BERT": (transformers.BertForSequenceClassification(bert), {"input_ids": IDS}),
        "a small module": (small, {"input": IDS.float()}),
    }


def guard_seconds(model: nn.Module, arguments: dict[str, Tensor], rounds: int) -> float:
    """Return the seconds of checking the Python state of an entry, where no argument is an object."""
    jitted = sg.jit(model, executors=["torch"])
    for _ in range(3):
        jitted(**arguments)
    (guard,) = [guard for guard in last_entry(jitted).captured.guards if "state" in guard.scope]
    leaves = {f"a{place}": value for place, value in enumerate(arguments.values())}
    check: Callable[[], object] = eval(f"lambda: {guard.condition}", {**guard.scope, **leaves})
    if not check():
        raise RuntimeError("the guards do not hold for the call they were made for")
    return min(per_call(check, calls=2000) for _ in range(rounds))


@contextmanager
def left_out() -> Iterator[None]:
    """Disable the feature, as SWITCHGEAR_DISABLE_FEATURES=python_state does for a whole process."""
    begin = PythonState.begin
    PythonState.begin = lambda self, recorder: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        PythonState.begin = begin  # type: ignore[method-assign]


def without_state() -> float:
    """Return the seconds to the first training result without the feature."""
    with left_out():
        return first_result(lambda model: sg.jit(model, executors=["torch"]), LAYERS)


def branching(x: Tensor, weight: Tensor) -> Tensor:
    """Branch on data, which capture refuses."""
    for _ in range(10):
        x = torch.tanh(x @ weight)
        x = x * 2 if x.sum() > 0 else x - 1
    return x


def first_call(compiled: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds of a call, nothing compiled before."""
    forget()
    start = time.perf_counter()
    compiled(*arguments)
    return time.perf_counter() - start


def split_seconds(compiled: Callable[[Any], Any]) -> float:
    """Return the seconds of the first call of a new function with the same code."""
    torch.manual_seed(0)
    return first_call(compiled(lambda x, w: branching(x, w)), torch.randn(8, 16), torch.randn(16, 16))


def around_seconds(wrap: Callable[[nn.Module], nn.Module]) -> float:
    """Return the seconds of the first call of `torch.compile` on a function that calls a module."""
    module = wrap(gpt2(2))
    compiled = torch.compile(lambda ids: module(input_ids=ids).logits * 2, backend="aot_eager")
    return first_call(compiled, IDS)


def run(rounds: int) -> Result:
    """Measure; one uncounted round of each goes first and loads modules that are loaded on first use."""
    transformers.logging.set_verbosity_error()
    guards = {name: guard_seconds(*arguments, rounds) for name, arguments in models().items()}

    def jit(function: Any) -> Any:
        return sg.jit(function, executors=["torch"])

    def aot(function: Any) -> Any:
        return torch.compile(function, backend="aot_eager")

    capture = {"with Python state": lambda: first_result(jit, LAYERS), "without": without_state}
    split = {"switchgear, split": lambda: split_seconds(jit), "torch.compile": lambda: split_seconds(aot)}
    around = {"of a jitted one": lambda: around_seconds(jit), "of it itself": lambda: around_seconds(lambda m: m)}
    pairs: list[dict[str, Callable[[], float]]] = [capture, split, around]
    for pair in pairs:
        for measurement in pair.values():
            measurement()
    captures, splits, arounds = [interleave(rounds, pair) for pair in pairs]
    return Result(guards, captures, splits, arounds, scales(rounds))
