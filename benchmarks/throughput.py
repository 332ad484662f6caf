"""Time per call, first call, saved and peak bytes of every contestant on every workload."""

from __future__ import annotations

import functools
import gc
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import transformers
from torch import Tensor
from torch._inductor.utils import clear_caches

from benchmarks.compile_latency import forget
from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.measure import Ratio, Samples, geometric_mean, interleave, per_call
from benchmarks.memory import Held, measure
from benchmarks.whole_step import whole_steps_allowed
from benchmarks.workloads import WORKLOADS, Function, Mode, Task, Workload
from switchgear.disk_cache import CACHE_VARIABLE

#: Rounds of a run, and with `quick`.
ROUNDS, QUICK_ROUNDS = 15, 2
#: Seconds of one measurement in eager; a longer call is called once.
SECONDS = 0.05
#: Calls before the first measurement. TorchScript optimises in its second and third. glibc, told to keep memory,
#: places aligned blocks afresh until its lists of small blocks are full, seven calls long.
WARM_UP = 10
BASELINE, CANDIDATE = "eager", "switchgear"
#: The peers; a candidate is compared with the best.
PEERS = (BASELINE, "compile")


class WrongResult(Exception):
    """A contestant's results differ from eager's."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One contestant on one workload; a failed contestant has only a name and an `error`.

    cold, warm: seconds of compiling and the first call, with an empty disk cache and with the cold call's cache.
    deviation: of the results from eager's. faults: pages mapped in one call.
    """

    contestant: str
    error: str | None = None
    cold: float | None = None
    warm: float | None = None
    deviation: float | None = None
    samples: Samples | None = None
    to_eager: Ratio | None = None
    faults: int | None = None
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload with every contestant, and the comparable contestants' ratios to the best of `PEERS`."""

    workload: str
    calls: int
    measured: list[Measured]
    to_best: dict[str, Ratio]

    def __str__(self) -> str:
        width = max(len(item.contestant) for item in self.measured)
        head = f"{'median ms':>10}  {'× eager [95 % interval]':>24}  {'faults':>7}"
        head += f"  {'cold s':>7}  {'warm s':>7}  {'deviation':>9}"
        has_bytes = any(item.held for item in self.measured)
        head += f"  {'saved MB':>9}  {'peak MB':>9}" if has_bytes else ""
        lines = [f"{self.workload}, {self.calls} calls a round", f"  {'':{width}}  {head}"]
        return "\n".join([*lines, *(f"  {item.contestant:{width}}  {row(item)}" for item in self.measured)])


@dataclass(frozen=True, slots=True)
class Result:
    """Every workload."""

    comparisons: list[Comparison]
    absent: dict[str, str]
    rounds: int

    @property
    def ratio(self) -> float:
        """The geometric mean of Switchgear's times, with its default executors, by those of the best peer."""
        return self.overall(CANDIDATE)

    def overall(self, contestant: str) -> float:
        """Return the geometric mean of a contestant's times by the best peer's."""
        ratios = [item.to_best[contestant].value for item in self.comparisons if contestant in item.to_best]
        return geometric_mean(ratios)

    def __str__(self) -> str:
        lines = [f"throughput, {self.rounds} rounds; MB: 2**20 bytes"]
        lines += [f"  left out: {name}: {reason}" for name, reason in self.absent.items()]
        lines += [f"\n{comparison}" for comparison in self.comparisons]
        names = dict.fromkeys(name for comparison in self.comparisons for name in comparison.to_best)
        if names:
            lines.append(f"\nby the best of {' and '.join(PEERS)}: time, worst first")
        for name in names:
            ratios = [(item.to_best[name], item.workload) for item in self.comparisons if name in item.to_best]
            lines.append(f"  {name}: geometric mean {self.overall(name):.3f} of {len(ratios)}")
            ratios.sort(key=lambda pair: -pair[0].value)
            lines += [f"    {ratio!s:>24}  {workload}" for ratio, workload in ratios]
        return "\n".join(lines)


def row(item: Measured) -> str:
    """Return one line of a table, without the contestant's name."""
    if item.error is not None or item.samples is None:
        return f"FAILED: {item.error}"
    ratio = "" if item.to_eager is None else str(item.to_eager)
    cells = f"{1e3 * item.samples.median:10.4f}  {ratio:>24}  {item.faults:7}"
    cells += f"  {item.cold:7.2f}  {item.warm:7.2f}  {item.deviation:9.1e}"
    return cells + (f"  {item.held.saved / 2**20:9.2f}  {item.held.peak / 2**20:9.2f}" if item.held else "")


def run(rounds: int, workloads: Sequence[str] = (), contestants: Sequence[str] = (), *, quick: bool = False) -> Result:
    """Measure the named workloads and contestants; all without names, except contestants on request."""
    transformers.logging.set_verbosity_error()
    taking, absent = chosen_contestants(contestants)
    comparisons = []
    with tempfile.TemporaryDirectory() as folder:
        for contestant in taking:  # loads modules before the first workload's compile time
            lane = Lane(contestant, WORKLOADS["mlp/training"], Path(folder) / "warm_up", quick=True)
            lane.attempt(lane.compile_cold)
        for workload in chosen_workloads(workloads):
            allowed = whole_steps_allowed() if workload.mode is Mode.STEP else nullcontext()
            with allowed:
                comparisons.append(compare(workload, taking, rounds, Path(folder), quick=quick))
            say(f"{comparisons[-1]}\n")  # a run may take an hour, and end early
    return Result(comparisons, absent, rounds)


def chosen_workloads(names: Sequence[str]) -> list[Workload]:
    """Return the workloads by name (`gpt2/training`) or part of it (`gpt2`). Raises `ValueError` for unknown names."""
    for name in names:
        if not any(name in (workload, *workload.split("/")) for workload in WORKLOADS):
            raise ValueError(f"no workload {name}; there are {', '.join(WORKLOADS)}")
    return [
        item for full_name, item in WORKLOADS.items() if not names or set(names) & {full_name, *full_name.split("/")}
    ]


def chosen_contestants(names: Sequence[str]) -> tuple[list[Contestant], dict[str, str]]:
    """Return the named contestants that can run here, and why others cannot. Raises `ValueError` for unknown names."""
    available = [item.name for item in CONTESTANTS]
    if unknown := [name for name in names if name not in available]:
        raise ValueError(
            f"no contestant {', '.join(unknown)}; there are {', '.join(item.name for item in CONTESTANTS)}"
        )
    named = [item for item in CONTESTANTS if (item.name in names if names else not item.on_request)]
    reasons = {item.name: item.missing() for item in named}
    absent = {name: reason for name, reason in reasons.items() if reason is not None}
    return [item for item in named if item.name not in absent], absent


class Lane:
    """One contestant with its task, while a workload is measured."""

    def __init__(self, contestant: Contestant, workload: Workload, folder: Path, quick: bool) -> None:
        self.contestant = contestant
        self.build = functools.partial(workload.task, quick)
        self.caches = folder / workload.name / contestant.name
        self.error: str | None = None
        self.task: Task
        self.function: Function
        self.cold = self.warm = self.deviation = math.nan

    def attempt(self, stage: Callable[[], None]) -> None:
        """Run a stage, unless an earlier stage failed; a failure is a result too."""
        if self.error is None:
            try:
                stage()
            except Exception as error:
                self.error = reason_of(error)

    def first_call(self) -> tuple[float, Tensor]:
        """Compile and call once, with caches on disk of its own; return the seconds and the result."""
        self.task = self.build()
        with caches_in(self.caches):
            start = time.perf_counter()
            self.function = self.contestant.compile(self.task)
            result = self.task.run(self.function)
            return time.perf_counter() - start, result

    def compile_cold(self) -> None:
        """Measure the cold first call only; objects in memory are dropped, files on disk stay."""
        forget()
        self.cold, _ = self.first_call()
        del self.task, self.function

    def compile_warm(self, expected: Sequence[Tensor]) -> None:
        """Compile the measured function, check its results, and call the function until steady."""
        self.warm, result = self.first_call()
        results = self.task.results(result)
        self.deviation = max(map(deviation, results, expected), default=0.0)
        limit = 0.0 if self.contestant.exact else self.task.tolerance
        if len(results) != len(expected) or not self.deviation <= limit:
            raise WrongResult(
                f"off by {self.deviation:.1e}, {limit:g} allowed; {len(results)} of {len(expected)} results"
            )
        for _ in range(WARM_UP):
            self.task.run(self.function)

    def seconds(self, calls: int) -> float:
        """Return CPU seconds per call: with one thread, equal to an idle machine's, whatever else runs."""
        return per_call(lambda: self.task.run(self.function), calls=calls, clock=time.process_time)

    def page_faults(self) -> int:
        """Return the pages mapped in one call."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self.task.run(self.function)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def held(self) -> Held | None:
        """Return the bytes of a training step; None in other modes."""
        if self.task.mode is not Mode.TRAINING:
            return None
        for tensor in self.task.learned:
            tensor.grad = None
        return measure(self.contestant.name, lambda: self.task.forward(self.function))


def compare(
    workload: Workload, contestants: Sequence[Contestant], rounds: int, folder: Path, *, quick: bool
) -> Comparison:
    """Measure every contestant on one workload."""
    task = workload.task(quick)
    expected = task.results(task.run(task.function))
    del task
    lanes = [Lane(contestant, workload, folder, quick) for contestant in contestants]
    for lane in lanes:
        say(f"{workload.name}: {lane.contestant.name} compiles")
        lane.attempt(lane.compile_cold)
        gc.collect()
    forget()
    for lane in lanes:
        if lane.error is None:
            say(f"{workload.name}: {lane.contestant.name} compiles again")
        lane.attempt(lambda: lane.compile_warm(expected))  # noqa: B023
    running = [lane for lane in lanes if lane.error is None]
    calls = 1
    if running and not quick:
        calls = max(1, round(SECONDS / running[0].seconds(3)))
    say(f"{workload.name}: {rounds} rounds of {calls} calls")
    timed = interleave(rounds, {lane.contestant.name: timing(lane, calls) for lane in running})
    samples = {item.name: item for item in timed}
    say(f"{workload.name}: memory")
    measured = [finished(lane, samples.get(lane.contestant.name), samples.get(BASELINE)) for lane in lanes]
    return Comparison(workload.name, calls, measured, to_best_peer(samples))


def timing(lane: Lane, calls: int) -> Callable[[], float]:
    """Return a function that measures a lane."""
    return lambda: lane.seconds(calls)


def finished(lane: Lane, samples: Samples | None, baseline: Samples | None) -> Measured:
    """Return the final measurements of a lane."""
    name = lane.contestant.name
    if samples is None:
        return Measured(name, lane.error)
    ratio = None if baseline is None else samples.interval_to(baseline)
    return Measured(name, None, lane.cold, lane.warm, lane.deviation, samples, ratio, lane.page_faults(), lane.held())


def to_best_peer(samples: dict[str, Samples]) -> dict[str, Ratio]:
    """Return every Switchgear configuration's ratio to the peer with the least median; empty if a peer is missing."""
    if not all(peer in samples for peer in PEERS):
        return {}
    best = min((samples[peer] for peer in PEERS), key=lambda item: item.median)
    return {name: item.interval_to(best) for name, item in samples.items() if name.startswith(CANDIDATE)}


def deviation(actual: Tensor, expected: Tensor) -> float:
    """Return the greatest difference by the greatest element; infinite where shapes, dtypes or NaNs differ."""
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return math.inf
    difference = float((actual - expected).abs().max())
    if difference == 0:
        return 0.0
    greatest = float(expected.abs().max())
    return difference / greatest if difference > 0 and greatest > 0 else math.inf


@contextmanager
def caches_in(folder: Path) -> Iterator[None]:
    """Keep all caches of Inductor, its users, and Switchgear below this folder, and forget all others."""
    names = ("TORCHINDUCTOR_CACHE_DIR", CACHE_VARIABLE)
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(folder)))
    clear_caches()
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def reason_of(error: Exception) -> str:
    """Return a failure in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def say(what: str) -> None:
    """Print progress."""
    print(what, file=sys.stderr, flush=True)
