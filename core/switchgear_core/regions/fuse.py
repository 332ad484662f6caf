"""Fuse: lines claimed by fusion executors become regions, each a single bound symbol.

The subsymbols of a region are the replaced lines, with their links. Lines without fuel, or declined by their executor,
are claimed by other executors. A composite claimed by another executor is restored (`wholes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from graphlib import CycleError, TopologicalSorter
from operator import itemgetter
from typing import TypeAlias

from switchgear_core.ir.choice import Implementation
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.dead_code import live
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, Symbol, changed, proxies
from switchgear_core.ir.trace import Trace
from switchgear_core.record.sizes import sizes_of
from switchgear_core.regions.choose import Fused, choose
from switchgear_core.regions.regions import Dataflow, cut, find_regions
from switchgear_core.regions.wholes import Whole, find_wholes, put_together, within
from switchgear_core.registry.claim import claim
from switchgear_core.registry.region import Region
from switchgear_core.registry.selection import Selection


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """A region and the indices of its bound symbols without views; `objection` tells why no executor accepts it."""

    members: tuple[int, ...]
    region: Region
    objection: str

    @property
    def items(self) -> tuple[BoundSymbol, ...]:
        """The bound symbols of the block, with the views."""
        return self.region.trace.bound_symbols


_Place: TypeAlias = _Block | Whole | int


def fuse(trace: Trace, selection: Selection) -> Trace:
    """Replace lines claimed by fusion executors by regions.

    A region is convex: no outside line both reads from the region and computes an input of the region. Views are free,
    so each region contains the views of its inputs. A view read elsewhere is recomputed there: a region returns no
    view. A region is claimed by other executors if its executor declines, fuel is used up, or a plugin prefers
    operators.
    """
    flow = Dataflow(live(trace.bound_symbols, proxies(trace.outputs)), selection.fusion)
    wholes = find_wholes(flow, trace)
    blocks = _blocks(flow, trace, selection, wholes)
    contested = [block for block in blocks if block.region.candidates]
    outcomes = choose([block.region for block in contested], trace.name, selection)
    lines: dict[_Block, BoundSymbol] = {}
    reasons = {block: block.objection for block in blocks if block.objection}
    for block, outcome in zip(contested, outcomes, strict=True):
        if isinstance(outcome, Fused):
            lines[block] = _line(block, outcome)
        else:
            reasons[block] = outcome.reason
    selection.fuel.regions.extend(lines.values())
    refused = {index: reason for block, reason in reasons.items() for index in block.members}
    others = selection.without_fusion()
    body: list[BoundSymbol] = []
    fused = {index for block in lines for index in block.members}
    # a region that reads a view of an inner value reads the inner value
    read = {proxy.name for block in lines for proxy in block.region.trace.inputs}
    closed = [item for item in wholes if item.hidden.isdisjoint(read)]
    composites = within(closed, {*range(len(flow.body))} - fused)
    for place in _ordered(flow, trace, list(lines), composites):
        if isinstance(place, _Block):
            body.append(lines[place])
            continue
        if isinstance(place, Whole):
            index = next(index for index in place.members if flow.owners[index])
            item = place.call
        else:
            index, item = place, changed(flow.body[place], choices=flow.body[place].choices[:-1])
        if owner := flow.owners[index]:
            line_trace = replace(trace, bound_symbols=(item,))
            refusal = owner, refused.get(index, "a view that is read outside of its regions")
            body.extend(claim(line_trace, others, (refusal,)).bound_symbols)
        else:
            body.append(flow.body[index])
    return replace(trace, bound_symbols=tuple(body))


def _blocks(
    flow: Dataflow, trace: Trace, selection: Selection, wholes: Sequence[Whole]
) -> list[_Block]:
    """Return the regions, in the order of their last members."""
    uncut = [
        (members, selection.fusion[flow.owners[members[0]]].maximum)
        for members in find_regions(flow)
    ]
    groups = sorted(
        [part for members, most in uncut for part in cut(flow, members, most)], key=itemgetter(-1)
    )
    parts = [tuple([flow.body[index] for index in flow.with_views(members)]) for members in groups]
    inputs = [_read(items) for items in parts]
    outside = flow.outside(
        {index for members in groups for index in members}, proxies(trace.outputs)
    )
    needed = {proxy.name for proxy in proxies((trace.outputs, inputs))}
    needed.update(proxy.name for index in outside for proxy in flow.body[index].inputs)
    blocks = []
    for members, items, region_inputs in zip(groups, parts, inputs, strict=True):
        results = (proxy for index in members for proxy in flow.body[index].outputs)
        outputs = tuple([proxy for proxy in results if proxy.name in needed])
        sizes = sizes_of(items)
        region = Trace("region", region_inputs, outputs, items, numbers=tuple(sizes))
        result = put_together(flow, region, flow.with_views(members), within(wholes, members))
        finder = selection.fusion[flow.owners[members[0]]]
        # an explicit list: the first executor's regions; a chooser of a plugin: every executor's regions are offered
        takers = selection.takers(items) if selection.choosers else (finder,)
        answers = {executor: executor.supports_region(region) for executor in takers}
        candidates = tuple([executor for executor, answer in answers.items() if answer is None])
        objection = "; ".join(
            answer.reason for answer in answers.values() if answer is not None and not candidates
        )
        blocks.append(
            _Block(
                tuple(members), Region(region, result, candidates, tuple(sizes.values())), objection
            )
        )
    return blocks


def _read(items: Iterable[BoundSymbol]) -> tuple[TensorProxy, ...]:
    """Return the values read, not computed, by bound symbols."""
    names: set[str] = set()
    read: dict[str, TensorProxy] = {}
    for item in items:
        read.update((proxy.name, proxy) for proxy in item.inputs if proxy.name not in names)
        names.update(proxy.name for proxy in item.outputs)
    return tuple(read.values())


def _line(block: _Block, fused: Fused) -> BoundSymbol:
    """Return a region as a single bound symbol."""
    trace, items = replace(block.region.trace, name=fused.name), block.items
    by_operators = cache(trace.function)
    links = {(id(link.forward), link.rule): link for item in items for link in item.links}
    place = f"in {fused.name} ({fused.reason})" if fused.reason else f"in {fused.name}"
    choices = [
        choice
        if choice is not item.choices[-1]
        else replace(choice, owner=fused.executor.name, reason=place)
        for item in items
        for choice in item.choices
    ]
    return BoundSymbol(
        Symbol(trace.name, lambda *args: by_operators()(*args)),
        (*block.region.numbers, *trace.inputs),
        {},
        trace.outputs,
        items,
        source=items[0].source,
        tags=frozenset().union(*(item.tags for item in items)),
        links=tuple(links.values()),
        implementation=Implementation(
            fused.executor.name, fused.function, fused.executor.boxed, gain=fused.gain
        ),
        choices=tuple(dict.fromkeys(choices)),
    )


def _ordered(
    flow: Dataflow, trace: Trace, blocks: Sequence[_Block], wholes: Sequence[Whole]
) -> list[_Place]:
    """Return units and outside bound symbols in order, each at its last member or before its first reader."""
    units: tuple[_Block | Whole, ...] = (*blocks, *wholes)
    places: dict[int, _Place] = {index: unit for unit in units for index in unit.members}
    read = proxies((trace.outputs, *(composite.call.inputs for composite in wholes)))
    outside = flow.outside(places.keys(), read)
    places.update((index, index) for index in outside if index not in places)
    needs = {place: _needs(flow, places, place) for place in places.values()} if wholes else {}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError:
        # a region lies between two parts of a composite, reads the first and is read by the second
        return _ordered(flow, trace, blocks, ())
    ordered: list[_Place] = []
    places_done: set[_Place] = set()
    for index in sorted(places):
        place = places[index]
        pending = [place] if isinstance(place, int) or place.members[-1] == index else []
        while pending:
            place = pending[-1]
            missing = (
                [need for need in _needs(flow, places, place) if need not in places_done]
                if place not in places_done
                else []
            )
            pending.extend(reversed(missing))
            if not missing:
                pending.pop()
                if place not in places_done:
                    places_done.add(place)
                    ordered.append(place)
    return ordered


def _needs(flow: Dataflow, places: Mapping[int, _Place], place: _Place) -> list[_Place]:
    """Return the places to run before a place."""
    members = (place,) if isinstance(place, int) else place.members
    needed = [need for index in members for need in flow.needs[index]]
    if not isinstance(place, _Block):
        # a view is read as a view here, and made first
        call = flow.body[place] if isinstance(place, int) else place.call
        needed += [flow.maker[proxy.name] for proxy in call.inputs if proxy.name in flow.maker]
    return [places[need] for need in needed if places[need] is not place]


def may_have_regions(trace: Trace, selection: Selection) -> bool:
    """Check whether an executor fuses, and the trace is long enough for a region."""
    count = len([*leaves_of(trace.bound_symbols)])
    return any(count >= executor.minimum for executor in selection.fusion.values())
