"""What Python state costs: guards of a cached call, first calls, and TorchDynamo in front, beside what they replace.

Guards are timed as the check of an entry's Python state alone. A first call is measured with the feature and without
it, where it may be left out; a split function beside `torch.compile(backend="aot_eager")` on the same function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import switchgear as sg
from benchmarks.compile_latency import first_result, forget, gpt2
from benchmarks.measure import Samples, interleave, per_call, table, verdict
from switchgear.features.python_state import PythonState
from switchgear.jit import last_entry

#: Microseconds a call, at most.
GUARDS = {"GPT-2": 12.0, "Llama": 12.0, "BERT": 12.0, "a small module": 0.5}
#: The first call, by that without the feature; of a split function, by torch.compile's; around a module, by without.
CAPTURE, SPLIT, AROUND = 1.08, 1.3, 1.3
LAYERS = 12
IDS = torch.arange(32).reshape(2, 16)


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of each."""

    guards: dict[str, float]
    capture: list[Samples]
    split: list[Samples]
    around: list[Samples]

    @property
    def ratio(self) -> dict[str, float]:
        """Of each pair, the first by the second."""
        pairs = {"capture": self.capture, "split": self.split, "around": self.around}
        return {name: found[0].ratio_to(found[1]) for name, found in pairs.items()}

    def __str__(self) -> str:
        lines = [f"guards on Python state, cached call, {LAYERS} layers"]
        for name, seconds in self.guards.items():
            lines.append(verdict(f"{name}, µs", 1e6 * seconds, GUARDS[name]))
        for what, found, limit in (
            (f"first training result of a GPT-2 of {LAYERS} layers", self.capture, CAPTURE),
            ("first call of a function that is split", self.split, SPLIT),
            ("torch.compile of a function that calls a module, first call", self.around, AROUND),
        ):
            lines += [what, table(found, found[1], unit="s")]
            lines.append(verdict("ratio", found[0].ratio_to(found[1]), limit))
        return "\n".join(lines)


def models() -> dict[str, tuple[nn.Module, dict[str, Tensor]]]:
    """By name, with the arguments of a call."""
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
    """A check of the Python state that an entry was compiled for, where no argument is an object."""
    jitted = sg.jit(model, executors=["torch"])
    for _ in range(3):
        jitted(**arguments)
    (guard,) = [guard for guard in last_entry(jitted).captured.guards if "state" in guard.scope]
    check: Callable[[], object] = eval(f"lambda: {guard.condition}", dict(guard.scope))
    if not check():
        raise RuntimeError("the guards do not hold for the call they were made for")
    return min(per_call(check, calls=2000) for _ in range(rounds))


@contextmanager
def left_out() -> Iterator[None]:
    """The feature sees nothing, as SWITCHGEAR_DISABLE_FEATURES=python_state has it in a process of its own."""
    begin = PythonState.begin
    PythonState.begin = lambda self, recorder: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        PythonState.begin = begin  # type: ignore[method-assign]


def without_state() -> float:
    """Seconds to the first training result."""
    with left_out():
        return first_result(lambda model: sg.jit(model, executors=["torch"]), LAYERS)


def branching(x: Tensor, weight: Tensor) -> Tensor:
    """What capture refuses: which way it goes is in the data."""
    for _ in range(10):
        x = torch.tanh(x @ weight)
        x = x * 2 if x.sum() > 0 else x - 1
    return x


def first_call(compiled: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of a call, nothing compiled before."""
    forget()
    start = time.perf_counter()
    compiled(*arguments)
    return time.perf_counter() - start


def split_seconds(compiled: Callable[[Any], Any]) -> float:
    """Of a new function with the same code."""
    torch.manual_seed(0)
    return first_call(compiled(lambda x, w: branching(x, w)), torch.randn(8, 16), torch.randn(16, 16))


def around_seconds(wrap: Callable[[nn.Module], nn.Module]) -> float:
    """Of `torch.compile` of a function that calls a module."""
    module = wrap(gpt2(2))
    compiled = torch.compile(lambda ids: module(input_ids=ids).logits * 2, backend="aot_eager")
    return first_call(compiled, IDS)


def run(rounds: int) -> Result:
    """Measure; a round of each goes ahead uncounted, for what is loaded on first use."""
    transformers.logging.set_verbosity_error()
    guards = {name: guard_seconds(*made, rounds) for name, made in models().items()}

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
    return Result(guards, *[interleave(rounds, pair) for pair in pairs])
