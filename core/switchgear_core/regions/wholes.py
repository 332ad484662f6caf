"""Wholes: composites that are called whole again where no region takes any of their parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from switchgear_core.ir.dead_code import live
from switchgear_core.ir.symbol import BoundSymbol, proxies
from switchgear_core.ir.trace import Trace
from switchgear_core.regions.regions import Dataflow


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """A composite with the indices of its parts; `members` are the parts except inner views.

    `hidden`: names of values that only parts read.
    """

    call: BoundSymbol
    parts: tuple[int, ...]
    members: tuple[int, ...]
    hidden: frozenset[str]


def find_wholes(flow: Dataflow, trace: Trace) -> list[Whole]:
    """Return the composites that can replace their parts, the outermost first.

    Conditions: no outside line reads inner values, and the parts read all inputs of the composite.
    """
    parts: dict[BoundSymbol, list[int]] = defaultdict(list)
    readers: dict[str, set[int]] = defaultdict(set)
    for index, item in enumerate(flow.body):
        for call in item.wholes:
            parts[call].append(index)
        for proxy in item.inputs if parts else ():
            readers[proxy.name].add(index)
    inputs = {*trace.tensors, *(proxy.name for proxy in trace.inputs)}
    returned = {proxy.name for proxy in proxies(trace.outputs)}
    composites = []
    for call, indices in parts.items():
        items, results = [flow.body[index] for index in indices], {p.name for p in call.outputs}
        read = {proxy.name for item in items for proxy in item.inputs}
        outputs = {proxy.name for item in items for proxy in item.outputs}
        hidden = frozenset(outputs - results)
        ends = {flow.maker[name] for name in results & outputs}
        members = tuple([index for index in indices if index in ends or not flow.is_view[index]])
        is_open = hidden & returned or any(readers[name].difference(indices) for name in hidden)
        is_fed = all(p.name in read or p.name in inputs for p in call.inputs)
        if results <= outputs and not is_open and is_fed:
            composites.append(Whole(call, tuple(indices), members, hidden))
    return composites


def within(wholes: Iterable[Whole], members: Collection[int]) -> list[Whole]:
    """Return the composites whose members are all in `members`, none inside of another."""
    inside, parts = frozenset(members), set[int]()
    composites = []
    for composite in wholes:
        if parts.isdisjoint(composite.parts) and inside.issuperset(composite.members):
            parts.update(composite.parts)
            composites.append(composite)
    return composites


def put_together(
    flow: Dataflow, region: Trace, indices: Sequence[int], wholes: Iterable[Whole]
) -> Trace:
    """Return a region of the bound symbols at the given indices, with composites in the place of their parts."""
    first = {composite.parts[0]: composite.call for composite in wholes}
    if not first:
        return region
    inside = {index for composite in wholes for index in composite.parts}
    items = [
        first.get(index, flow.body[index])
        for index in indices
        if index in first or index not in inside
    ]
    return replace(region, bound_symbols=live(tuple(items), proxies(region.outputs)))
