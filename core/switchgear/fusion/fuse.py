"""Fuse: what fusion executors claimed becomes regions, each of them one bound symbol.

Its subsymbols are what it replaces, with their links. What its executor declines, or what there is no fuel for, is
claimed again by the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter

from switchgear.capture.sizes import sizes_of
from switchgear.fusion.choose import Fused, choose
from switchgear.fusion.regions import Dataflow, cut, find_regions
from switchgear.ir.choice import Implementation
from switchgear.ir.dead_code import live
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.symbol import BoundSymbol, Symbol, changed, proxies
from switchgear.ir.trace import Trace
from switchgear.who.claim import claim
from switchgear.who.region import Region
from switchgear.who.selection import Selection


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """A region and the indices of its bound symbols, views left out; `objection` says why nobody takes it."""

    members: tuple[int, ...]
    region: Region
    objection: str

    @property
    def items(self) -> tuple[BoundSymbol, ...]:
        """Its bound symbols, with the views."""
        return self.region.trace.bound_symbols


def fuse(trace: Trace, selection: Selection) -> Trace:
    """Replace what fusion executors claimed by regions.

    A region is convex: nothing outside of it both needs a part of it and is needed by another. Views cost nothing, so
    each region that reads one has it as a part of its own, and one that is read elsewhere is made there: what a region
    returns is no view. What a region's executor declines, what no fuel is left for, or what a plugin leaves to its
    operators, is claimed by the others.
    """
    flow = Dataflow(live(trace.bound_symbols, proxies(trace.outputs)), selection.fusion)
    blocks = _blocks(flow, trace, selection)
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
    for place in _ordered(flow, trace, list(lines)):
        if isinstance(place, _Block):
            body.append(lines[place])
        elif owner := flow.owners[place]:
            item = flow.body[place]
            again = replace(trace, bound_symbols=(changed(item, choices=item.choices[:-1]),))
            refusal = owner, refused.get(place, "a view that is read outside of its regions")
            body.extend(claim(again, others, (refusal,)).bound_symbols)
        else:
            body.append(flow.body[place])
    return replace(trace, bound_symbols=tuple(body))


def _blocks(flow: Dataflow, trace: Trace, selection: Selection) -> list[_Block]:
    """The regions, in the order of their last members."""
    whole = [
        (members, selection.fusion[flow.owners[members[0]]].maximum)
        for members in find_regions(flow)
    ]
    found = sorted(
        [part for members, most in whole for part in cut(flow, members, most)], key=itemgetter(-1)
    )
    parts = [tuple([flow.body[index] for index in flow.with_views(members)]) for members in found]
    inputs = [_read(items) for items in parts]
    outside = flow.outside(
        {index for members in found for index in members}, proxies(trace.outputs)
    )
    needed = {proxy.name for proxy in proxies((trace.outputs, inputs))}
    needed.update(proxy.name for index in outside for proxy in flow.body[index].inputs)
    blocks = []
    for members, items, given in zip(found, parts, inputs, strict=True):
        made = (proxy for index in members for proxy in flow.body[index].outputs)
        outputs = tuple([proxy for proxy in made if proxy.name in needed])
        sizes = sizes_of(items)
        region = Trace("region", given, outputs, items, numbers=tuple(sizes))
        finder = selection.fusion[flow.owners[members[0]]]
        # who listed executors wants regions of that one, who leaves it to plugins to choose those of everyone
        takers = selection.takers(items) if selection.choosers else (finder,)
        answers = {executor: executor.supports_region(region) for executor in takers}
        candidates = tuple([executor for executor, answer in answers.items() if answer is None])
        objection = "; ".join(
            answer.reason for answer in answers.values() if answer is not None and not candidates
        )
        blocks.append(
            _Block(tuple(members), Region(region, candidates, tuple(sizes.values())), objection)
        )
    return blocks


def _read(items: Iterable[BoundSymbol]) -> tuple[TensorProxy, ...]:
    """What bound symbols read and do not make."""
    made: set[str] = set()
    read: dict[str, TensorProxy] = {}
    for item in items:
        read.update((proxy.name, proxy) for proxy in item.inputs if proxy.name not in made)
        made.update(proxy.name for proxy in item.outputs)
    return tuple(read.values())


def _line(block: _Block, fused: Fused) -> BoundSymbol:
    """The region as one bound symbol."""
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
        implementation=Implementation(fused.executor.name, fused.function, fused.executor.boxed),
        choices=tuple(dict.fromkeys(choices)),
    )


def _ordered(flow: Dataflow, trace: Trace, blocks: Sequence[_Block]) -> list[_Block | int]:
    """Regions and the bound symbols outside of them, each where the last of it stood or its first reader needs it."""
    places: dict[int, _Block | int] = {index: block for block in blocks for index in block.members}
    places.update((index, index) for index in flow.outside(places.keys(), proxies(trace.outputs)))
    ordered: list[_Block | int] = []
    done: set[_Block | int] = set()
    for index in sorted(places):
        place = places[index]
        pending = [place] if isinstance(place, int) or place.members[-1] == index else []
        while pending:
            place = pending[-1]
            missing = (
                [one for one in _needs(flow, places, place) if one not in done]
                if place not in done
                else []
            )
            pending.extend(reversed(missing))
            if not missing:
                pending.pop()
                if place not in done:
                    done.add(place)
                    ordered.append(place)
    return ordered


def _needs(
    flow: Dataflow, places: Mapping[int, _Block | int], place: _Block | int
) -> list[_Block | int]:
    """What has to run before a place does."""
    if isinstance(place, _Block):
        return [
            places[one]
            for index in place.members
            for one in flow.needs[index]
            if places[one] is not place
        ]
    # a view is read as such here, and made first
    makers = [
        flow.maker[proxy.name] for proxy in flow.body[place].inputs if proxy.name in flow.maker
    ]
    return [places[one] for one in (*flow.needs[place], *makers)]
