"""Compiling functions of very many operators: seconds to the first result, and their growth with the operators."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import switchgear as sg
from benchmarks.compile_latency import forget
from benchmarks.measure import Samples, interleave, table, verdict

#: The most seconds of the longest function.
LIMIT = 60.0
#: The largest growth of the time per operator from the shortest to the longest, as a fraction.
LINEARITY = 0.2
OPERATORS = (6_250, 12_500, 50_000)


@dataclass(frozen=True, slots=True)
class Result:
    """Switchgear with the torch executor at each of `OPERATORS`, no grad."""

    samples: list[Samples]

    @property
    def ratio(self) -> float:
        """The ratio of the longest function's seconds to the limit."""
        return self.samples[-1].median / LIMIT

    @property
    def growth(self) -> float:
        """The growth of the time per operator from the shortest to the longest, as a fraction."""
        first, last = (self.samples[i].median / OPERATORS[i] for i in (0, -1))
        return last / first - 1

    def __str__(self) -> str:
        lines = [
            "first result of a function of many operators, no grad",
            table(self.samples, self.samples[0], unit="s"),
        ]
        lines.append(verdict("seconds", self.samples[-1].median, LIMIT))
        return "\n".join([*lines, verdict("growth of the time per operator", self.growth, LINEARITY)])


def sines(x: Tensor, operators: int) -> Tensor:
    """Run a number of operators, in one line."""
    for _ in range(operators // 2):
        x = x.sin() + 1
    return x


def first_result(operators: int) -> float:
    """Return CPU seconds of compiling and the first call; a busy machine disturbs CPU time less than clock time."""
    forget()
    x = torch.randn(4)
    jitted = sg.jit(sines, executors=["torch"])
    start = time.process_time()
    result = jitted(x, operators)
    seconds = time.process_time() - start
    if not torch.equal(result, sines(x, operators)):
        raise RuntimeError("the compiled function computes something else")
    return seconds


def run(rounds: int) -> Result:
    """Measure; a short uncounted function goes first and loads modules that are loaded on first use."""
    first_result(10)
    return Result(interleave(rounds, {f"{count} operators": measurement(count) for count in OPERATORS}))


def measurement(operators: int) -> Callable[[], float]:
    """Return a function that measures `first_result` of a number of operators."""
    return lambda: first_result(operators)
