"""The contest: which candidate runs a region fastest, by times that are measured, or remembered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import switchgear as sg

from .measuring import seconds_of

#: The seconds that each candidate takes, and last the operators; or the reason why there are none.
Result: TypeAlias = list[float] | str


def hold(regions: Sequence[sg.Region], context: sg.RegionContext) -> list[sg.RegionChoice]:
    """The fastest candidate of each region, or None where its operators are as fast.

    Of regions that are alike the first is compiled by all its candidates and measured, unless it was before.
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

    def __init__(self, region: sg.Region, context: sg.RegionContext) -> None:
        self.region = region
        self._context = context
        self._operators = context.operators(region)
        calls = region.trace.bound_symbols
        self._devices = {proxy.device for call in calls for proxy in (*call.inputs, *call.outputs)}
        lines = self._operators.bound_symbols
        owners = [line.implementation.owner for line in lines if line.implementation]
        self._names = [*(executor.name for executor in region.candidates), " + ".join(dict.fromkeys(owners))]
        #: All that the times depend on.
        self.key = repr(
            (
                region.trace.canonical(),
                [(line.symbol.name, owner) for line, owner in zip(lines, owners, strict=True)],
                region.sizes,
                *_described(region, context),
                sg.surroundings(self._devices),
            )
        )

    def remembered(self) -> list[float] | None:
        """What was measured before, by this process or another."""
        seconds = sg.disk_cache.load(self.key)
        if not isinstance(seconds, list) or len(seconds) != len(self._names):
            return None
        return seconds if all(type(one) is float and 0 < one < math.inf for one in seconds) else None

    def run(self) -> Result:
        """What comes of measuring; remembered, unless something fails."""
        entrants = [(self.region, executor) for executor in self.region.candidates]
        compiled = list(self._context.compile(entrants).values())
        if declined := [one.reason for one in compiled if isinstance(one, sg.Declined)]:
            return "; ".join(declined)
        functions: list[Callable[..., Any]] = [
            _unboxed(function) if executor.boxed else function
            for executor, function in zip(self.region.candidates, compiled, strict=True)
            if not isinstance(function, sg.Declined)
        ]
        operators = self._context.function(self._operators)
        try:
            seconds = seconds_of([*functions, operators], self.region.sizes, self.region.layouts, self._devices)
        except Exception as error:
            return f"not measured, for that raised {type(error).__name__}: {error}"
        sg.disk_cache.store(self.key, seconds)
        return seconds

    def choice(self, result: Result | None) -> sg.RegionChoice:
        """Who is taken, for these times."""
        if not isinstance(result, list):
            return sg.RegionChoice(None, result or "")
        times = ", ".join(f"{name}: {1e6 * one:.1f} µs" for name, one in zip(self._names, result, strict=True))
        *fused, operators = result
        best = min(fused)
        if best < operators:
            return sg.RegionChoice(self.region.candidates[fused.index(best)], times, operators - best)
        return sg.RegionChoice(None, f"not faster as measured, {times}")


def _unboxed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function([*args])


def _described(region: sg.Region, context: sg.RegionContext) -> tuple[Any, ...]:
    """Those who take part, with their versions and options."""
    fused = [
        (context.label(one), type(one).__module__, type(one).__qualname__, one.fingerprint())
        for one in region.candidates
    ]
    others = [executor for executor in context.executors if not isinstance(executor, sg.FusionExecutor)]
    return fused, [context.label(executor) for executor in others]
