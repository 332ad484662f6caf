"""Fuse: what fusion executors claimed becomes regions, each of them one bound symbol."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter
from typing import Any

import torch

from switchgear.choice import Choice, Declined, Implementation
from switchgear.errors import ExecutorFailed
from switchgear.executor import FusionExecutor
from switchgear.proxy import TensorProxy
from switchgear.regions import Dataflow, cut, find_regions
from switchgear.selection import Selection
from switchgear.sizes import sizes_of
from switchgear.symbol import BoundSymbol, Symbol, proxies
from switchgear.trace import Trace

from .claim import claim
from .contest import Contest
from .dead_code import live

NO_FUEL = Declined("no fuel is left for its region")


@dataclass(frozen=True, slots=True, eq=False)
class _Region:
    """Indices of bound symbols that run as one, views left out; `trace` has these too.

    `sizes` are its numbers, `times` those measured.
    """

    executor: FusionExecutor
    members: tuple[int, ...]
    items: tuple[BoundSymbol, ...]
    trace: Trace
    sizes: tuple[torch.SymInt, ...]
    times: str = ""

    def compiled_by(self, executor: FusionExecutor, program: str, number: int) -> _Region:
        """The region as one that an executor compiles, named so."""
        name = re.sub(r"\W", "_", f"{executor.name}_{program}_{number}")
        return replace(self, executor=executor, trace=replace(self.trace, name=name))


def fuse(trace: Trace, selection: Selection, choices: Sequence[Choice]) -> tuple[Trace, tuple[Choice, ...]]:
    """Replace what fusion executors claimed by regions; `choices` are those of `claim`, and come back amended.

    A region is convex: nothing outside of it both needs a part of it and is needed by another. Views cost nothing, so
    each region that reads one has it as a part of its own, and one that is read elsewhere is made there: what a region
    returns is no view. What a region's executor declines, what no fuel is left for, or what is measured to run no
    faster so, is claimed by the others.
    """
    executed = [choice for choice in choices if choice.owner != "decomposition"]
    taken = dict(zip(trace.bound_symbols, executed, strict=True))
    flow = Dataflow(live(trace.bound_symbols, proxies(trace.outputs)), selection.fusion)
    regions = _regions(flow, trace, selection)
    compiled, objections = (_measured if selection.measured else _supported)(regions, trace.name, selection)
    failed = {region: answer.reason for region, answer in compiled.items() if isinstance(answer, Declined)}
    fused = {region: _line(region, one) for region, one in compiled.items() if not isinstance(one, Declined)}
    refused = {index: reason for region, reason in (objections | failed).items() for index in region.members}
    selection.fuel.regions.extend(fused.values())
    amended: dict[Choice, tuple[Choice, ...]] = {}
    for region, line in fused.items():
        name = f"{line.symbol.name} ({region.times})" if region.times else line.symbol.name
        for item in region.items:
            choice = amended.get(taken[item], (taken[item],))[0]
            reason = f"{choice.reason}, {name}" if choice.reason else f"in {name}"
            amended[taken[item]] = (replace(choice, owner=region.executor.name, reason=reason),)
    others = selection.without_fusion()
    body: list[BoundSymbol] = []
    for place in _ordered(flow, trace, list(fused)):
        if isinstance(place, int) and flow.owners[place]:
            again, made = claim(replace(trace, bound_symbols=(flow.body[place],)), others)
            body.extend(again.bound_symbols)
            refusal = (flow.owners[place], refused.get(place, "a view that is read outside of its regions"))
            choice = taken[flow.body[place]]
            amended[choice] = tuple([replace(one, declined=(refusal, *one.declined)) for one in made])
        else:
            body.append(flow.body[place] if isinstance(place, int) else fused[place])
    changed = (one for choice in choices for one in amended.get(choice, (choice,)))
    return replace(trace, bound_symbols=tuple(body)), tuple(changed)


def _regions(flow: Dataflow, trace: Trace, selection: Selection) -> list[_Region]:
    """The regions, in the order of their last members."""
    whole = [(members, selection.fusion[flow.owners[members[0]]].maximum) for members in find_regions(flow)]
    found = sorted([part for members, most in whole for part in cut(flow, members, most)], key=itemgetter(-1))
    parts = [tuple([flow.body[index] for index in flow.with_views(members)]) for members in found]
    inputs = [_read(items) for items in parts]
    outside = flow.outside({index for members in found for index in members}, proxies(trace.outputs))
    needed = {proxy.name for proxy in proxies((trace.outputs, inputs))}
    needed.update(proxy.name for index in outside for proxy in flow.body[index].inputs)
    regions = []
    for members, items, given in zip(found, parts, inputs, strict=True):
        made = (proxy for index in members for proxy in flow.body[index].outputs)
        outputs = tuple([proxy for proxy in made if proxy.name in needed])
        sizes = sizes_of(items)
        region = Trace("region", given, outputs, items, numbers=tuple(sizes))
        executor = selection.fusion[flow.owners[members[0]]]
        regions.append(_Region(executor, tuple(members), items, region, tuple(sizes.values())))
    return regions


def _read(items: Iterable[BoundSymbol]) -> tuple[TensorProxy, ...]:
    """What bound symbols read and do not make."""
    made: set[str] = set()
    read: dict[str, TensorProxy] = {}
    for item in items:
        read.update((proxy.name, proxy) for proxy in item.inputs if proxy.name not in made)
        made.update(proxy.name for proxy in item.outputs)
    return tuple(read.values())


def _supported(
    regions: Sequence[_Region], program: str, selection: Selection
) -> tuple[dict[_Region, Callable[..., Any] | Declined], dict[_Region, str]]:
    """The regions that their executors do not decline, compiled, and why the others are not."""
    objections: dict[_Region, str] = {}
    accepted: list[_Region] = []
    for region in regions:
        objection = region.executor.supports_region(region.trace)
        if objection is None and len(accepted) == selection.fuel.left:
            objection = NO_FUEL
        if objection is None:
            accepted.append(region.compiled_by(region.executor, program, len(accepted)))
        else:
            objections[region] = objection.reason
    return _compiled(accepted), objections


def _measured(
    regions: Sequence[_Region], program: str, selection: Selection
) -> tuple[dict[_Region, Callable[..., Any] | Declined], dict[_Region, str]]:
    """The regions that run faster so, compiled by who is fastest, and why the others are not.

    Of regions that are alike the first is compiled by all that take it, and measured, unless it was before.
    """
    objections: dict[_Region, str] = {}
    contests: dict[int, Contest] = {}
    for number, region in enumerate(regions):
        takers = selection.takers(region.items)
        answers = {executor: executor.supports_region(region.trace) for executor in takers}
        candidates = [executor for executor, answer in answers.items() if answer is None]
        if candidates:
            contests[number] = Contest(region.trace, region.sizes, candidates, selection)
        else:
            objections[region] = "; ".join(answer.reason for answer in answers.values() if answer is not None)
    outcomes = {contest.key: contest.remembered() for contest in contests.values()}
    first: dict[str, int] = {}
    for number, contest in contests.items():
        if outcomes[contest.key] is None:
            first.setdefault(contest.key, number)
    entrants = {
        (number, executor): regions[number].compiled_by(executor, program, number)
        for number in first.values()
        for executor in contests[number].candidates
    }
    functions = _compiled(list(entrants.values()))
    for key, number in first.items():
        contest = contests[number]
        outcomes[key] = contest.measured([functions[entrants[number, one]] for one in contest.candidates])
    winners: dict[_Region, str] = {}
    for number, contest in contests.items():
        region, outcome = regions[number], outcomes[contest.key]
        assert outcome is not None
        if outcome.winner is None:
            objections[region] = outcome.report
        elif len(winners) == selection.fuel.left:
            objections[region] = NO_FUEL.reason
        else:
            entrant = entrants.get((number, outcome.winner))
            winners[entrant or region.compiled_by(outcome.winner, program, number)] = outcome.report
    functions |= _compiled([region for region in winners if region not in functions])
    return {replace(region, times=times): functions[region] for region, times in winners.items()}, objections


def _compiled(regions: Sequence[_Region]) -> dict[_Region, Callable[..., Any] | Declined]:
    """What runs each region, or why nothing does."""
    functions: dict[_Region, Callable[..., Any] | Declined] = {}
    for executor in dict.fromkeys(region.executor for region in regions):
        own = [region for region in regions if region.executor is executor]
        try:
            made = executor.compile_all([region.trace for region in own])
        except Exception as error:
            operators = ", ".join(dict.fromkeys(item.symbol.name for region in own for item in region.items))
            raise ExecutorFailed(
                f"executor {executor.name!r} failed to compile regions of {operators}: {type(error).__name__}: "
                f"{error}. Leave it out with executors=[...]"
            ) from error
        functions.update(zip(own, made, strict=True))
    return functions


def _line(region: _Region, function: Callable[..., Any]) -> BoundSymbol:
    """The region as one bound symbol."""
    trace = region.trace
    by_operators = cache(trace.function)
    links = {(id(link.forward), link.rule): link for item in region.items for link in item.links}
    return BoundSymbol(
        Symbol(trace.name, lambda *args: by_operators()(*args)),
        (*region.sizes, *trace.inputs),
        {},
        trace.outputs,
        region.items,
        source=region.items[0].source,
        tags=frozenset().union(*(item.tags for item in region.items)),
        links=tuple(links.values()),
        implementation=Implementation(region.executor.name, function, region.executor.boxed),
    )


def _ordered(flow: Dataflow, trace: Trace, regions: Sequence[_Region]) -> list[_Region | int]:
    """Regions and the bound symbols outside of them, each where the last of it stood or its first reader needs it."""
    places: dict[int, _Region | int] = {index: region for region in regions for index in region.members}
    places.update((index, index) for index in flow.outside(places.keys(), proxies(trace.outputs)))
    ordered: list[_Region | int] = []
    done: set[_Region | int] = set()
    for index in sorted(places):
        place = places[index]
        pending = [place] if isinstance(place, int) or place.members[-1] == index else []
        while pending:
            place = pending[-1]
            missing = [one for one in _needs(flow, places, place) if one not in done] if place not in done else []
            pending.extend(reversed(missing))
            if not missing:
                pending.pop()
                if place not in done:
                    done.add(place)
                    ordered.append(place)
    return ordered


def _needs(flow: Dataflow, places: Mapping[int, _Region | int], place: _Region | int) -> list[_Region | int]:
    """What has to run before a place does."""
    if isinstance(place, _Region):
        return [places[one] for index in place.members for one in flow.needs[index] if places[one] is not place]
    # a view is read as such here, and made first
    makers = [flow.maker[proxy.name] for proxy in flow.body[place].inputs if proxy.name in flow.maker]
    return [places[one] for one in (*flow.needs[place], *makers)]
