"""Training on a GPU: tokens per second, host time of a call and peak bytes, by workload and contestant."""

from __future__ import annotations

import functools
import gc
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks import contestants as kinds
from benchmarks.compile_latency import forget
from benchmarks.contestants import Contestant, compiled, configured, eager
from benchmarks.gpu_workloads import WORKLOADS, Build, Place
from benchmarks.measure import Ratio, Samples, geometric_mean, interleave, per_call, verdict
from benchmarks.throughput import BASELINE, CANDIDATE, PEERS, WrongResult, caches_in, reason_of, say, to_best_peer
from benchmarks.workloads import Function, Task

#: Rounds of a run, and with `quick`.
ROUNDS, QUICK_ROUNDS = 15, 2
#: Seconds of one measurement in eager.
SECONDS = 0.2
#: Calls before the first measurement: CUDA graphs are captured in the second or third.
WARM_UP = 5
#: The largest distance of a tensor from the float32 result: `FACTOR` times eager's distance, plus `FLOOR`.
FACTOR, FLOOR = 4.0, 0.01
#: The least norm of a tensor, relative to all tensors: a gradient that is zero except for rounding has no norm.
LEAST = 1e-3
#: The longest time of a contestant by a peer's on a workload, and the most peak bytes by eager's there.
TIME_LIMITS, PEAK_LIMIT = {("llama", "compile"): 1 / 1.1, ("llama", BASELINE): 1 / 1.3}, 0.8


def no_inductor(device: str) -> str | None:
    """Return why torch.compile's default backend cannot run on a device; None if all requirements are installed."""
    return kinds.no_compiler() if device == "cpu" else kinds.not_importable("triton")


def contestants_on(device: str) -> tuple[Contestant, ...]:
    """Return all contestants; eager, the baseline of the others, is the first."""
    missing = functools.partial(no_inductor, device)
    modes: dict[str, dict[str, Any]] = {
        "compile": {},
        "compile-max-autotune": {"mode": "max-autotune"},
        "compile-reduce-overhead": {"mode": "reduce-overhead"},
    }
    return (
        Contestant(BASELINE, eager),
        *(Contestant(name, functools.partial(compiled, **mode), missing=missing) for name, mode in modes.items()),
        configured(CANDIDATE, compile="now"),
        configured("switchgear-nvfuser", executors=["cublas", "nvfuser", "torch"]),
        configured("switchgear-inductor", executors=["cublas", "inductor", "torch"]),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """One contestant on one workload; a failed contestant has only a name and an `error`.

    first: seconds of compiling and the first call. samples: seconds of a call, until the device is done. host: seconds
    until a call on an idle device returns. peak: most bytes of the contestant's tensors at once, with parameters and
    gradients; reserved: most bytes that the allocator took from the device. Both are for CUDA only.
    """

    contestant: str
    error: str | None = None
    first: float | None = None
    deviation: float | None = None
    samples: Samples | None = None
    to_eager: Ratio | None = None
    host: Samples | None = None
    peak: int | None = None
    reserved: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload with every contestant. deviation: eager's own. to_best: as in `throughput`."""

    workload: str
    tokens: int
    calls: int
    deviation: float
    measured: list[Measured]
    to_best: dict[str, Ratio]

    def __str__(self) -> str:
        width = max(len(item.contestant) for item in self.measured)
        head = f"{'tokens/s':>10}  {'median ms':>10}  {'× eager [95 % interval]':>24}  {'spread':>6}  {'host µs':>9}"
        head += f"  {'first s':>7}  {'deviation':>9}  {'peak MB':>9}  {'reserved':>9}"
        lines = [f"{self.workload}, {self.tokens} tokens, {self.calls} calls a round", f"  {'':{width}}  {head}"]
        return "\n".join([*lines, *(f"  {item.contestant:{width}}  {self.row(item)}" for item in self.measured)])

    def row(self, item: Measured) -> str:
        """Return one line of the table, without the contestant's name."""
        if item.samples is None or item.host is None:
            return f"FAILED: {item.error}"
        middle, ratio = item.samples.median, "" if item.to_eager is None else str(item.to_eager)
        spread = (max(item.samples.seconds) - min(item.samples.seconds)) / middle
        cells = f"{self.tokens / middle:10.0f}  {1e3 * middle:10.4f}  {ratio:>24}  {spread:6.1%}"
        cells += f"  {1e6 * item.host.median:9.1f}  {item.first:7.2f}  {item.deviation:9.1e}"
        return cells + "".join(f"  {'-' if n is None else f'{n / 2**20:.1f}':>9}" for n in (item.peak, item.reserved))


@dataclass(frozen=True, slots=True)
class Result:
    """Every workload."""

    comparisons: list[Comparison]
    absent: dict[str, str]
    rounds: int
    device: str
    quick: bool

    @property
    def ratio(self) -> dict[str, float]:
        """The geometric mean of time ratios to the best peer, by configuration of Switchgear."""
        names = dict.fromkeys(name for item in self.comparisons for name in item.to_best)
        ratios = {
            name: [item.to_best[name].value for item in self.comparisons if name in item.to_best] for name in names
        }
        return {name: geometric_mean(values) for name, values in ratios.items()}

    def __str__(self) -> str:
        lines = [f"training in bf16 on {self.device}, {self.rounds} rounds; MB: 2**20 bytes"]
        lines += [f"  left out: {name}: {reason}" for name, reason in self.absent.items()]
        lines += [f"\n{comparison}" for comparison in self.comparisons]
        if self.ratio:
            lines.append(f"\nby the best of {' and '.join(PEERS)}: time, geometric mean of the workloads")
        lines += [f"  {name}: {value:.3f}" for name, value in self.ratio.items()]
        if not self.quick:
            lines += [line for comparison in self.comparisons for line in targets(comparison)]
        return "\n".join(lines)


def targets(comparison: Comparison) -> list[str]:
    """Return the targets of a workload, and whether the fastest configuration of Switchgear reaches each."""
    samples = {item.contestant: item.samples for item in comparison.measured if item.samples is not None}
    peaks = {item.contestant: item.peak for item in comparison.measured if item.peak is not None}
    limits = {peer: limit for (name, peer), limit in TIME_LIMITS.items() if name == comparison.workload}
    ours = [item for name, item in samples.items() if name.startswith(CANDIDATE)]
    if not limits or not ours:
        return []
    best = min(ours, key=lambda item: item.median)
    results = {
        f"time of {best.name} by that of {peer}": (best.ratio_to(samples[peer]), limit)
        for peer, limit in limits.items()
        if peer in samples
    }
    if best.name in peaks and BASELINE in peaks:
        results[f"peak of {best.name} by that of {BASELINE}"] = (peaks[best.name] / peaks[BASELINE], PEAK_LIMIT)
    return [verdict(f"{comparison.workload}: {what}", value, limit) for what, (value, limit) in results.items()]


def run(
    rounds: int,
    workloads: Sequence[str] = (),
    contestants: Sequence[str] = (),
    *,
    device: str = "cuda",
    quick: bool = False,
) -> Result:
    """Measure the named workloads and contestants; all without names."""
    transformers.logging.set_verbosity_error()
    place = Place(torch.device(device), torch.bfloat16, quick)
    taking, absent = chosen_contestants(contestants, device)
    comparisons = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen_workloads(workloads):
            comparisons.append(compare(name, taking, rounds, place, Path(folder)))
            say(f"{comparisons[-1]}\n")  # the machine may be lent for less time than a run takes
    return Result(comparisons, absent, rounds, name_of(place.device), quick)


def no_device(device: str) -> str | None:
    """Return why no benchmark can run on the device; None if one can."""
    if device == "cpu" or torch.cuda.is_available():
        return None
    built = "is built without CUDA" if torch.version.cuda is None else "finds no CUDA device here"
    return f"gpu needs a CUDA device, and PyTorch {torch.__version__} {built}; --device cpu --quick shows that it runs"


def name_of(device: torch.device) -> str:
    """Return the device in words."""
    if device.type == "cpu":
        return "the CPU"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor}, CUDA {torch.version.cuda})"


def chosen_workloads(names: Sequence[str]) -> list[str]:
    """Return the named workloads. Raises `ValueError` for an unknown name."""
    return chosen(names, list(WORKLOADS), "workload")


def chosen_contestants(names: Sequence[str], device: str) -> tuple[list[Contestant], dict[str, str]]:
    """Return the named contestants that can run here, and why others cannot. Raises `ValueError` for unknown names."""
    contestants = {item.name: item for item in contestants_on(device)}
    named = [contestants[name] for name in chosen(names, list(contestants), "contestant")]
    reasons = {item.name: item.missing() for item in named}
    absent = {name: reason for name, reason in reasons.items() if reason is not None}
    return [item for item in named if item.name not in absent], absent


def chosen(names: Sequence[str], choices: Sequence[str], what: str) -> list[str]:
    """Return the named ones, or all. Raises `ValueError` for an unknown name."""
    if unknown := [name for name in names if name not in choices]:
        raise ValueError(f"no {what} {', '.join(unknown)} of gpu; there are {', '.join(choices)}")
    return [name for name in choices if not names or name in names]


class Lane:
    """One contestant with its task, while a workload is measured."""

    def __init__(self, contestant: Contestant, build: Build, place: Place, folder: Path) -> None:
        self.contestant = contestant
        self.build = build
        self.place = place
        self.folder = folder
        self.error: str | None = None
        self.task: Task
        self.function: Function
        self.first = self.deviation = 0.0
        self.peak: int | None = None
        self.reserved: int | None = None

    def call(self) -> Tensor:
        """Run the measured call."""
        return self.task.run(self.function)

    def prepare(self, reference: Reference) -> None:
        """Compile, compare, warm up and measure memory; a failure is a result too."""
        before = in_use(self.place.device)
        try:
            with caches_in(self.folder):
                self.first, results = self.first_call()
            self.deviation = reference.check(results)
            del results
            for _ in range(WARM_UP):
                self.call()
            self.measure_memory(before)
        except Exception as error:
            self.error = reason_of(error)
        if self.error is not None:  # the error's traceback, now gone, held the tensors too
            self.task = self.function = None  # type: ignore[assignment]

    def first_call(self) -> tuple[float, list[Tensor]]:
        """Return the seconds of compiling and one call, until the device is done, and the results."""
        self.task, _ = built(self.build, self.place)
        synchronise(self.place.device)
        start = time.perf_counter()
        self.function = self.contestant.compile(self.task)
        result = self.call()
        synchronise(self.place.device)
        return time.perf_counter() - start, self.task.results(result)

    def measure_memory(self, before: tuple[int, int]) -> None:
        """Measure the most bytes of one call, beyond the bytes in use before this lane existed.

        The memory of CUDA graphs is set apart at capture, so only the reserved bytes include that memory.
        """
        if self.place.device.type != "cuda":
            return
        for tensor in self.task.learned:
            tensor.grad = None
        in_use(self.place.device)
        torch.cuda.reset_peak_memory_stats()
        self.call()
        synchronise(self.place.device)
        self.peak = torch.cuda.max_memory_allocated() - before[0]
        self.reserved = torch.cuda.max_memory_reserved() - before[1]

    def seconds(self, calls: int) -> float:
        """Return the seconds per call, until the device is done with all calls."""
        if self.place.device.type != "cuda":
            return per_call(self.call, calls=calls)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        synchronise(self.place.device)
        start.record()
        per_call(self.call, calls=calls)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls

    def host_seconds(self) -> float:
        """Return the seconds until one call on an idle device returns: a full queue would make the host wait."""
        synchronise(self.place.device)
        return per_call(self.call, calls=1)

    def finished(self, samples: Samples | None, baseline: Samples | None, host: Samples | None) -> Measured:
        """Return the final measurements."""
        name = self.contestant.name
        if samples is None:
            return Measured(name, self.error)
        ratio = None if baseline is None else samples.interval_to(baseline)
        return Measured(name, None, self.first, self.deviation, samples, ratio, host, self.peak, self.reserved)


class Reference:
    """The results in float32, and the distance of eager's results in the place's dtype from float32's."""

    def __init__(self, build: Build, place: Place) -> None:
        exact, self.tokens = built(build, Place(place.device, torch.float32, place.quick))
        self.expected = exact.results(exact.run(eager(exact)))
        total = torch.stack([tensor.square().sum() for tensor in self.expected[1:]]).sum()
        mean = total / sum(tensor.numel() for tensor in self.expected[1:])
        self.norms = [tensor.norm() + LEAST * (mean * tensor.numel()).sqrt() for tensor in self.expected]
        task, _ = built(build, place)
        self.eager = self.deviations(task.results(task.run(eager(task))))

    def deviations(self, results: Sequence[Tensor]) -> list[float]:
        """Return for each tensor the norm of the difference, relative to the norm of the expected tensor."""
        pairs = zip(results, self.expected, self.norms, strict=True)
        return [float((result.float() - reference).norm() / norm) for result, reference, norm in pairs]

    def check(self, results: Sequence[Tensor]) -> float:
        """Return the greatest deviation. Raises `WrongResult` if a deviation exceeds rounding in this dtype."""
        if [tensor.shape for tensor in results] != [tensor.shape for tensor in self.expected]:
            raise WrongResult(f"{len(results)} of {len(self.expected)} results, or of other shapes")
        deviations = self.deviations(results)
        for index, (mine, eagers) in enumerate(zip(deviations, self.eager, strict=True)):
            if not mine <= FACTOR * eagers + FLOOR:
                raise WrongResult(f"result {index} is off by {mine:.1e} from float32's, and eager's by {eagers:.1e}")
        return max(deviations)


def compare(name: str, contestants: Sequence[Contestant], rounds: int, place: Place, folder: Path) -> Comparison:
    """Measure every contestant on one workload."""
    forget()
    say(f"{name}: the result in float32")
    reference = Reference(WORKLOADS[name], place)
    lanes = [Lane(item, WORKLOADS[name], place, folder / name / item.name) for item in contestants]
    for lane in lanes:
        say(f"{name}: {lane.contestant.name} compiles")
        lane.prepare(reference)
    tokens, deviation = reference.tokens, max(reference.eager)
    del reference
    running = {lane.contestant.name: lane for lane in lanes if lane.error is None}
    calls = 1
    if running and not place.quick:
        calls = max(1, round(SECONDS / next(iter(running.values())).seconds(3)))
    say(f"{name}: {rounds} rounds of {calls} calls")
    by_lane = interleave(rounds, {key: functools.partial(lane.seconds, calls) for key, lane in running.items()})
    samples = {item.name: item for item in by_lane}
    hosts = {item.name: item for item in interleave(rounds, {key: lane.host_seconds for key, lane in running.items()})}
    measured = []
    for lane in lanes:
        key = lane.contestant.name
        measured.append(lane.finished(samples.get(key), samples.get(BASELINE), hosts.get(key)))
    return Comparison(name, tokens, calls, deviation, measured, to_best_peer(samples))


def built(build: Build, place: Place) -> tuple[Task, int]:
    """Return a task with fresh tensors, equal each time."""
    torch.manual_seed(0)
    return build(place)


def synchronise(device: torch.device) -> None:
    """Wait until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_use(device: torch.device) -> tuple[int, int]:
    """Return the bytes of tensors, and the bytes taken from the device, after returning all free memory."""
    gc.collect()
    if device.type != "cuda":
        return 0, 0
    synchronise(device)
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
