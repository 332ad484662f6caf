"""Compiling functions of very many operators: seconds to the first result, and how they grow with the operators."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import switchgear as sg
from benchmarks.compile_latency import forget
from benchmarks.measure import Samples, interleave, table, verdict

#: Seconds that the longest may take.
LIMIT = 60.0
#: The time per operator may grow by this between the shortest and the longest.
LINEARITY = 0.2
OPERATORS = (6_250, 12_500, 50_000)


@dataclass(frozen=True, slots=True)
class Result:
    """Switchgear with the torch executor at each of `OPERATORS`, no grad."""

    samples: list[Samples]

    @property
    def ratio(self) -> float:
        """The seconds of the longest by the limit."""
        return self.samples[-1].median / LIMIT

    @property
    def growth(self) -> float:
        """By which part an operator of the longest takes more time than one of the shortest."""
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
    """So many operators, in one line."""
    for _ in range(operators // 2):
        x = x.sin() + 1
    return x


def first_result(operators: int) -> float:
    """CPU seconds of compiling and the first call; a busy machine disturbs them less than those of the clock."""
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
    """Measure; a short one goes ahead uncounted, for what is loaded on first use."""
    first_result(10)
    return Result(interleave(rounds, {f"{count} operators": measurement(count) for count in OPERATORS}))


def measurement(operators: int) -> Callable[[], float]:
    """`first_result` of so many, to be called by rounds."""
    return lambda: first_result(operators)
