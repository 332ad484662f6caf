"""Steps finished by seconds since the first call: a process for each contestant, with no caches on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import transformers

import switchgear as sg
from benchmarks.measure import verdict
from benchmarks.workloads import WORKLOADS, Mode, Task
from switchgear.disk_cache import CACHE_VARIABLE

#: Seconds of steps for each contestant.
SECONDS, QUICK_SECONDS = 45.0, 3.0
#: The least part of eager's steps that the default must have done at any time, and the seconds without this rule.
BEHIND, GRACE = 0.9, 2.0
#: Batch and length of the calls of `bert`, in turn.
SHAPES = ((4, 64), (4, 96), (2, 128), (8, 32), (6, 48))

COMPILERS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda function: function,
    "compile": torch.compile,
    "now": lambda function: sg.jit(function, compile="now"),
    "default": sg.jit,
}


@dataclass(frozen=True, slots=True)
class Curve:
    """The end of each step of a contestant, in seconds since its first call began."""

    workload: str
    contestant: str
    ends: tuple[float, ...]

    def steps(self, seconds: float) -> int:
        """Return the number of steps that had ended by then."""
        return bisect_right(self.ends, seconds)

    def rate(self) -> float:
        """Return the steps per second over the last fifth of the time."""
        last = self.ends[-1]
        count = len(self.ends) - self.steps(0.8 * last)
        return count / (last - self.ends[-count - 1]) if count < len(self.ends) else 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """The curves of every workload, the curves of one workload next to each other."""

    curves: list[Curve]
    seconds: float

    @property
    def workloads(self) -> list[str]:
        """The names of the workloads."""
        return list(dict.fromkeys(curve.workload for curve in self.curves))

    def of(self, workload: str) -> dict[str, Curve]:
        """Return a workload's curves by contestant."""
        return {curve.contestant: curve for curve in self.curves if curve.workload == workload}

    def least(self, workload: str, peer: str) -> tuple[float, float]:
        """Return the least part of a peer's steps that the default had done at any time, and that time."""
        curves = self.of(workload)
        times = [time for time in curves[peer].ends if time >= GRACE]
        parts = [(curves["default"].steps(each) / curves[peer].steps(each), each) for each in times]
        return min(parts, default=(1.0, 0.0))

    def least_behind_the_first(self, workload: str) -> tuple[float, float]:
        """Return the least ratio of the default's steps after its first call to eager's in equal time, and the time."""
        curves = self.of(workload)
        first = curves["default"].ends[0]
        times = [time for time in curves["eager"].ends if GRACE <= time <= curves["default"].ends[-1] - first]
        steps = [curves["default"].steps(first + each) - 1 for each in times]
        parts = [(count / curves["eager"].steps(each), each) for count, each in zip(steps, times, strict=True)]
        return min(parts, default=(1.0, 0.0))

    @property
    def ratio(self) -> float:
        """The least part of eager's steps that the default had done, in any workload at any time."""
        return min(self.least(name, "eager")[0] for name in self.workloads)

    def __str__(self) -> str:
        lines = ["steps by seconds since the first call, cold"]
        marks = [mark for mark in (1, 2, 5, 10, 20, 30, 40, 60) if mark <= self.seconds]
        for name in self.workloads:
            curves = self.of(name)
            lines.append(f"{name:12}" + "".join(f"{mark:>8} s" for mark in marks) + "   first  steps/s at the end")
            for contestant, curve in curves.items():
                counts = "".join(f"{curve.steps(mark):>10}" for mark in marks)
                lines.append(f"  {contestant:10}{counts}{curve.ends[0]:>7.2f} s{curve.rate():>10.2f}")
            for peer in ("eager", "compile"):
                part, when = self.least(name, peer)
                lines.append(f"  at least {part:.2f} of {peer}'s steps from {GRACE:.0f} s on, least at {when:.1f} s")
            part, when = self.least_behind_the_first(name)
            lines.append(f"  without its first call, at least {part:.2f} of eager's, least at {when:.1f} s")
            rate = curves["now"].rate()
            at_the_end = f"{curves['default'].rate() / rate:.3f} of now's rate" if rate else "now has no rate yet"
            lines.append(f"  at the end {at_the_end}")
        return "\n".join([*lines, verdict("behind", 1 / max(self.ratio, 1e-9), 1 / BEHIND)])


def bert(quick: bool) -> Callable[[Any], Callable[[], None]]:
    """Return a training of BERT on batches of five shapes in turn."""
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=32 if quick else 256,
        num_hidden_layers=1 if quick else 4,
        num_attention_heads=4,
        intermediate_size=64 if quick else 1024,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    )
    model = transformers.BertForSequenceClassification(config).train()
    calls = [(torch.randint(0, 1000, shape), torch.randint(0, 2, shape[:1])) for shape in SHAPES]

    def prepared(compiler: Callable[[Any], Any]) -> Callable[[], None]:
        compiled, turns = compiler(model), cycle(calls)

        def step() -> None:
            ids, labels = next(turns)
            model.zero_grad()
            compiled(input_ids=ids, labels=labels).loss.backward()

        return step

    return prepared


def of_task(task: Task) -> Callable[[Any], Callable[[], None]]:
    """Return the training of a workload of `throughput`."""

    def prepared(compiler: Callable[[Any], Any]) -> Callable[[], None]:
        function = compiler(task.function)
        return lambda: _train(task, function)

    return prepared


def _train(task: Task, function: Callable[..., Any]) -> None:
    task.run(function)


def _built(name: str, quick: bool) -> Callable[[Any], Callable[[], None]]:
    torch.manual_seed(0)
    if name == "bert":
        return bert(quick)
    workload = WORKLOADS[f"{name}/{Mode.TRAINING}"]
    return of_task(workload.task(quick))


NAMES = ("gpt2", "llama", "resnet", "mlp", "bert")


def ends_of(name: str, contestant: str, seconds: float, quick: bool) -> list[float]:
    """Return the ends of the steps of a contestant, in this process."""
    prepare = _built(name, quick)
    start = time.perf_counter()
    step = prepare(COMPILERS[contestant])
    ends: list[float] = []
    while not ends or ends[-1] < seconds:
        step()
        ends.append(time.perf_counter() - start)
    return ends


def run(rounds: int, workloads: Sequence[str] = (), contestants: Sequence[str] = (), quick: bool = False) -> Result:
    """Measure each contestant of each workload once, in a separate process with caches of its own."""
    seconds = QUICK_SECONDS if quick else SECONDS
    curves = []
    for name in chosen(workloads):
        for contestant in contestants or COMPILERS:
            print(f"{name}: {contestant}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                curves.append(Curve(name, contestant, tuple(_in_a_process(name, contestant, seconds, quick, folder))))
    return Result(curves, seconds)


def chosen(names: Sequence[str]) -> list[str]:
    """Return the workloads of these names; without names, all. Raises `ValueError` for another name."""
    if unknown := set(names) - set(NAMES):
        raise ValueError(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return [name for name in NAMES if not names or name in names]


def _in_a_process(name: str, contestant: str, seconds: float, quick: bool, folder: str) -> list[float]:
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"), CACHE_VARIABLE: str(Path(folder) / "own")}
    command = [sys.executable, "-m", "benchmarks.work_curve", name, contestant, str(seconds), str(int(quick))]
    process = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True)
    ends: list[float] = json.loads(process.stdout.splitlines()[-1])
    return ends


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    workload, contestant, duration, is_quick = sys.argv[1:]
    print(json.dumps(ends_of(workload, contestant, float(duration), bool(int(is_quick)))))
