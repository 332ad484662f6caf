"""The contest: the candidate that runs a region fastest and correctly, by measured or remembered times."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import switchgear as sg

from .measuring import measured
from .reproducing import reproduce


@dataclass(frozen=True, slots=True)
class Result:
    """The seconds of each candidate, and last of the operators; infinity and a reason for excluded candidates.

    Such a result is not stored, nor is one with differing repetitions.
    """

    seconds: list[float]
    reasons: dict[int, str]
    is_steady: bool = True


def hold(
    regions: Sequence[sg.executors.Region], context: sg.executors.RegionContext
) -> list[sg.executors.RegionChoice]:
    """Return the fastest candidate of each region, or None if its operators are as fast.

    Of similar regions, the first is compiled by all its candidates and measured, unless measured before.
    """
    races = [Race(region, context) for region in regions]
    results: dict[str, Result | None] = {race.key: race.remembered() for race in races}
    first: dict[str, Race] = {}
    for race in races:
        if results[race.key] is None:
            first.setdefault(race.key, race)
    context.compile([(race.region, executor) for race in first.values() for executor in race.region.candidates])
    for key, race in first.items():
        results[key] = race.run()
    return [race.choice(results[race.key]) for race in races]


class Race:
    """One region, run by each of its candidates, and operator by operator."""

    def __init__(self, region: sg.executors.Region, context: sg.executors.RegionContext) -> None:
        self.region = region
        self._context = context
        self._operators = context.operators(region)
        calls = region.trace.bound_symbols
        self._devices = {proxy.device for call in calls for proxy in (*call.inputs, *call.outputs)}
        lines = self._operators.bound_symbols
        owners = [line.implementation.owner for line in lines if line.implementation]
        self._names = [*(executor.name for executor in region.candidates), " + ".join(dict.fromkeys(owners))]
        codes = [context.code(item) for item in context.executors if item in region.candidates or item.name in owners]
        self._may_last = None not in codes
        #: Everything that influences the times.
        self.key = repr(
            (
                region.trace.canonical(),
                [(line.symbol.name, owner) for line, owner in zip(lines, owners, strict=True)],
                region.sizes,
                *_described(region, context),
                codes,
                sg.executors.surroundings(self._devices),
            )
        )

    def remembered(self) -> Result | None:
        """Return the earlier measurement, of the current process or another."""
        seconds = sg.disk_cache.load(self.key) if self._may_last else None
        if not isinstance(seconds, list) or len(seconds) != len(self._names):
            return None
        is_sound = all(type(value) is float and 0 < value < math.inf for value in seconds)
        return Result(seconds, {}) if is_sound else None

    def run(self) -> Result:
        """Measure, and remember the result if it is steady and nothing fails."""
        candidates = self.region.candidates
        compiled = self._context.compile([(self.region, executor) for executor in candidates])
        functions: dict[int, Callable[..., Any]] = {}
        reasons: dict[int, str] = {}
        for place, executor in enumerate(candidates):
            function = compiled[self.region, executor]
            if isinstance(function, sg.Declined):
                reasons[place] = function.reason
            else:
                functions[place] = _unboxed(function) if executor.boxed else function
        seconds = [math.inf] * len(self._names)
        if not functions:
            return Result(seconds, reasons)
        places = [*functions, len(candidates)]
        operators = self._context.function(self._operators)
        layouts, sizes = self.region.layouts, self.region.sizes
        try:
            timing = measured([*functions.values(), operators], sizes, layouts, self._devices, self._unlike)
        except Exception as error:
            reason = f"not measured, for that raised {type(error).__name__}: {error}"
            return Result(seconds, reasons | dict.fromkeys(functions, reason))
        for place, value in zip(places, timing.seconds, strict=True):
            seconds[place] = value
        for number, fault in timing.faults.items():
            reasons[places[number]] = self._out(candidates[places[number]], fault)
        result = Result(seconds, reasons, timing.is_steady)
        if self._may_last and result.is_steady and not reasons:
            sg.disk_cache.store(self.key, seconds)
        return result

    def _unlike(self, arguments: Sequence[Any], results: Any, expected: Any) -> str:
        return self._context.unlike(self.region, arguments, results, expected)

    def _out(self, executor: sg.Executor, fault: str) -> str:
        """Warn that a candidate is out, and return the reason."""
        calls = ", ".join(dict.fromkeys(call.symbol.name for call in self.region.trace.bound_symbols))
        place = reproduce(self.region, executor, fault)
        warnings.warn(
            f"executor {self._context.label(executor)} is out of the contest for a region of {calls}: {fault}. To "
            f"reproduce it: {place}",
            sg.errors.PluginWarning,
            stacklevel=2,
        )
        return f"out, for {fault}"

    def choice(self, result: Result | None) -> sg.executors.RegionChoice:
        """Return the choice by these times."""
        assert result is not None
        *fused, operators = result.seconds
        best = min(fused)
        lasts = result.is_steady and not any(reason.startswith("out, ") for reason in result.reasons.values())
        if best == math.inf:
            return sg.executors.RegionChoice(None, "; ".join(result.reasons.values()), lasts=lasts)
        times = ", ".join(
            f"{name}: {result.reasons.get(place) or f'{1e6 * value:.1f} µs'}"
            for place, (name, value) in enumerate(zip(self._names, result.seconds, strict=True))
        )
        times += "" if result.is_steady else "; unsteady, so measured again by other processes"
        if best < operators:
            return sg.executors.RegionChoice(self.region.candidates[fused.index(best)], times, operators - best, lasts)
        return sg.executors.RegionChoice(None, f"not faster as measured, {times}", lasts=lasts)


def _unboxed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function([*args])


def _described(region: sg.executors.Region, context: sg.executors.RegionContext) -> tuple[Any, ...]:
    """Return the contestants, with their versions and options."""
    fused = [
        (context.label(executor), type(executor).__module__, type(executor).__qualname__, executor.fingerprint())
        for executor in region.candidates
    ]
    others = [executor for executor in context.executors if not isinstance(executor, sg.FusionExecutor)]
    return fused, [context.label(executor) for executor in others]
