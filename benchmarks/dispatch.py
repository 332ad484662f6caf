"""What a cached call costs: `f(x) = x + 1` on one small tensor, no grad."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

import switchgear as sg
from benchmarks.measure import Samples, interleave, per_call, table, verdict

#: A cached call may cost this many times what the uncompiled function costs.
LIMIT = 2.5


@dataclass(frozen=True, slots=True)
class Result:
    """The candidates, the uncompiled function first."""

    samples: list[Samples]

    @property
    def ratio(self) -> float:
        """A cached call of Switchgear by a call of the uncompiled function."""
        uncompiled, switchgear, *_ = self.samples
        return switchgear.ratio_to(uncompiled)

    def __str__(self) -> str:
        rows = table(self.samples, self.samples[0], unit="µs")
        return f"cached call of f(x) = x + 1, 4 elements, no grad\n{rows}\n{verdict('ratio', self.ratio, LIMIT)}"


def add_one(x: torch.Tensor) -> torch.Tensor:
    """The function."""
    return x + 1


def candidates() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The uncompiled function, Switchgear, and the peers that can run here."""
    found = {
        "uncompiled": add_one,
        "switchgear": sg.jit(add_one, executors=["torch"]),
        "torch.compile eager": torch.compile(add_one, backend="eager"),
        "TorchScript": scripted(),
    }
    if shutil.which(os.environ.get("CXX", "g++")):  # what torch.compile's default backend needs on a CPU
        found["torch.compile inductor"] = torch.compile(add_one)
    return found


def scripted() -> Callable[[torch.Tensor], torch.Tensor]:
    """The function as TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # deprecated, and still the cheapest dispatch to compare with
        fn: Callable[[torch.Tensor], torch.Tensor] = torch.jit.script(add_one)
    return fn


def run(rounds: int) -> Result:
    """Measure every candidate, warm."""
    torch._dynamo.reset()
    x = torch.arange(4.0)
    functions = candidates()
    for name, fn in functions.items():
        if not all(torch.equal(fn(x), x + 1) for _ in range(20)):
            raise RuntimeError(f"{name} computes something else")
    return Result(interleave(rounds, {name: timed(fn, x) for name, fn in functions.items()}))


def timed(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Callable[[], float]:
    """A measurement of one candidate; the closure around the call costs every candidate the same."""
    return lambda: per_call(lambda: fn(x))
