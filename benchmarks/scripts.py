"""Training scripts of fourteen kinds with one `sg.jit`, compared with eager, step by step in turn."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

import switchgear as sg
from benchmarks.measure import geometric_mean
from benchmarks.script_cases import SCRIPTS, Script
from switchgear.errors import FallbackWarning, RecompileWarning

#: Steps of a run, and the first steps, which count for captures alone.
STEPS, FIRST = 120, 10
SEED = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One script: whether all losses were eager's, its time by eager's per step, captures, and calls.

    Attributes:
        ratio: the median, over the steps after the first, of CPU seconds by eager's of the same step.
        captures: CPU seconds beyond the median step, summed over steps of the whole run that took over three medians.
    """

    name: str
    same: bool
    ratio: float
    captures: float
    hits: int
    misses: int
    fallbacks: int

    def __str__(self) -> str:
        losses = "as eager's" if self.same else "DIFFER"
        calls = f"{self.hits:6d} {self.misses:6d} {self.fallbacks:9d}"
        return f"  {self.name:32} {losses:10} {self.ratio:8.3f} {self.captures:10.2f} {calls}"


@dataclass(frozen=True, slots=True)
class Result:
    """All scripts."""

    rows: list[Row]

    @property
    def ratio(self) -> float:
        """The geometric mean of the ratios."""
        return geometric_mean([row.ratio for row in self.rows])

    def __str__(self) -> str:
        head = f"  {'script':32} {'losses':10} {'÷ eager':>8} {'captures/s':>10}"
        head += f" {'hits':>6} {'misses':>6} {'fallbacks':>9}"
        setting = f"{STEPS} steps of each script, executors=['torch'], one thread"
        title = f"{setting}: CPU time per step by eager's, after {FIRST} steps"
        return "\n".join([title, head, *map(str, self.rows), f"  geometric mean {self.ratio:.3f}"])


class _Run:
    """A script with random streams of its own, hidden from other runs."""

    def __init__(self, script: Script, jit: Any) -> None:
        torch.manual_seed(SEED)
        random.seed(SEED)
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._steps: Iterator[Tensor] = script(jit, STEPS)
        self._streams = torch.get_rng_state(), random.getstate()

    def step(self) -> None:
        """Run the next step, and record its loss and its CPU seconds."""
        torch.set_rng_state(self._streams[0])
        random.setstate(self._streams[1])
        start = time.process_time()
        loss = next(self._steps)
        self.seconds.append(time.process_time() - start)
        self._streams = torch.get_rng_state(), random.getstate()
        self.losses.append(float(loss))


def measure(name: str, steps: int = STEPS) -> Row:
    """Run one script in eager and compiled, step by step in turn, on one thread: eager repeats itself only there."""
    torch.set_num_threads(1)
    jitted: list[Any] = []

    def jit(target: Any) -> Any:
        jitted.append(sg.jit(target, executors=["torch"]))
        return jitted[-1]

    with warnings.catch_warnings():
        for kind in (FallbackWarning, RecompileWarning):
            warnings.simplefilter("ignore", kind)
        eager, ours = _Run(SCRIPTS[name], lambda target: target), _Run(SCRIPTS[name], jit)
        for step in range(steps):
            for run in (eager, ours) if step % 2 else (ours, eager):
                run.step()
    ratios = [mine / theirs for mine, theirs in zip(ours.seconds[FIRST:], eager.seconds[FIRST:], strict=True)]
    usual = median(ours.seconds[FIRST:])
    beyond = sum(seconds - usual for seconds in ours.seconds if seconds > 3 * usual)
    calls = [sg.cache_info(item) for item in jitted]
    return Row(
        name,
        ours.losses == eager.losses,
        median(ratios),
        beyond,
        sum(info.hits for info in calls),
        sum(info.misses for info in calls),
        sum(info.fallbacks for info in calls),
    )


def run(rounds: int) -> Result:
    """Run every script; of several rounds, keep the round with the median ratio."""
    rows = []
    for name in SCRIPTS:
        results = sorted([measure(name) for _ in range(rounds)], key=lambda row: row.ratio)
        rows.append(results[len(results) // 2])
    return Result(rows)
