"""Timing of several candidates in interleaved rounds, so that a busy machine disturbs all alike."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

#: Resamples of an interval; with another seed, its ends move by about a percent of its width.
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Samples:
    """The seconds of one candidate, round by round."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.seconds)

    def ratio_to(self, other: Samples) -> float:
        """Return the median over the rounds of this candidate's time by the other's of the same round."""
        return statistics.median(self._ratios(other))

    def interval_to(self, other: Samples) -> Ratio:
        """Return `ratio_to` with its interval, by resampling the rounds."""
        ratios = self._ratios(other)
        draw = random.Random(0)
        medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
        return Ratio(
            statistics.median(ratios), medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]
        )

    def _ratios(self, other: Samples) -> list[float]:
        return [mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)]


def interleave(rounds: int, candidates: Mapping[str, Callable[[], float]]) -> list[Samples]:
    """Measure every candidate's seconds, `rounds` times in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.freeze()  # so that collecting a candidate's garbage takes negligible time
    try:
        for _ in range(rounds):
            for name, measured in candidates.items():
                gc.collect()
                seconds[name].append(measured())
    finally:
        gc.unfreeze()
    return [Samples(name, tuple(times)) for name, times in seconds.items()]


def geometric_mean(values: Collection[float]) -> float:
    """Return the geometric mean; NaN without values."""
    return statistics.geometric_mean(values) if values else math.nan


def per_call(fn: Callable[[], object], *, calls: int = 2000, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds per call, the garbage collector off."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        for _ in range(calls):
            fn()
        return (clock() - start) / calls
    finally:
        if enabled:
            gc.enable()


def table(samples: list[Samples], baseline: Samples, *, unit: str) -> str:
    """Return the samples as text: median, least and greatest, and the ratio to a baseline.

    Args:
        unit: `s`, `ms` or `µs`.
    """
    scale = {"s": 1.0, "ms": 1e3, "µs": 1e6}[unit]
    width = max(len(item.name) for item in samples)
    lines = [f"  {'':{width}}  {f'median {unit}':>10}  {'min':>8}  {'max':>8}  {f'× {baseline.name}':>12}"]
    for item in samples:
        values = [f"{scale * value:8.3f}" for value in (item.median, min(item.seconds), max(item.seconds))]
        ratio = item.ratio_to(baseline)
        lines.append(f"  {item.name:{width}}  {values[0]:>10}  {values[1]}  {values[2]}  {ratio:12.3f}")
    return "\n".join(lines)


def verdict(what: str, value: float, limit: float) -> str:
    """Return one line: the value, the limit, and whether the limit holds."""
    holds = not math.isnan(value) and value <= limit
    return f"  {what}: {value:.3f}, at most {limit:g} wanted: {'yes' if holds else 'NO'}"
