"""Claim: every bound symbol gets the executor that runs it.

A composite goes to the first executor that accepts it, unless an earlier executor claims a part. If the earlier one
fuses, the parts remember the composite (`BoundSymbol.wholes`), because the executor may decline the region later. Each
decision is stored on its line (`BoundSymbol.choices`), after the decisions about composites around the line.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import NamedTuple

from switchgear_core.errors import ExecutorUnavailable
from switchgear_core.ir.choice import Choice, Implementation
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.symbol import EXACT, IN_PLACE, BoundSymbol, changed, with_parts
from switchgear_core.ir.trace import Trace
from switchgear_core.registry.selection import Reasons, Selection


def claim(trace: Trace, selection: Selection, refusals: Reasons = ()) -> Trace:
    """Give every bound symbol an implementation; replace an unclaimed composite by its decomposition.

    A line of a fusion executor keeps its decomposition, because it may have to be claimed again: then `refusals` name
    the executors that do not run the line after all.
    """
    fusion = selection.fusion
    unfused, exact = cache(selection.without_fusion), cache(selection.exact)
    body: list[BoundSymbol] = []
    pending = deque(trace.bound_symbols)
    while pending:
        item = pending.popleft()
        implementation, declined, waits = claimant(
            item,
            exact() if EXACT in item.tags else unfused() if IN_PLACE in item.tags else selection,
        )
        owner = "decomposition" if implementation is None else implementation.owner
        choices = (
            *item.choices,
            Choice("execution", item.symbol.name, owner, "", (*refusals, *declined)),
        )
        if implementation is not None:
            parts = item.subsymbols if owner in fusion else ()
            body.append(
                changed(item, implementation=implementation, subsymbols=parts, choices=choices)
            )
        elif item.is_leaf:
            reasons = "; ".join(f"{owner}: {reason}" for owner, reason in declined)
            raise ExecutorUnavailable(
                f"no executor runs {item.symbol.name}, called at {item.source} ({reasons}); "
                "add 'torch' to the executors"
            )
        else:
            wholes = (*item.wholes, item) if waits else item.wholes
            pending.extendleft(
                changed(
                    part,
                    links=part.links or item.links,
                    choices=choices,
                    wholes=wholes,
                    tags=part.tags | (item.tags & {EXACT}),
                )
                for part in reversed(item.subsymbols)
            )
    return replace(trace, bound_symbols=tuple(body))


class Claim(NamedTuple):
    """The implementation of a bound symbol as a whole, if any, and the executors that declined.

    `waits`: an executor has code for the whole, not for a single operator alone, and would run it if a fusion executor
    declined the parts.
    """

    implementation: Implementation | None
    declined: Reasons
    waits: bool = False


def claimant(item: BoundSymbol, selection: Selection) -> Claim:
    """Return the claim of the first executor that accepts a bound symbol, unless an earlier one claims a part.

    An executor preferred for the symbol comes before all others.
    """
    implementation, declined = selection.implementation(item)
    if implementation is None or item.is_leaf:
        return Claim(implementation, declined)
    if selection.preferences.prefers(implementation.owner, item.symbol.name):
        return Claim(implementation, declined)
    order = [executor.name for executor in selection.executors]
    rank = order.index(implementation.owner)
    for part in with_parts(item.subsymbols) if rank else ():
        inner, _ = selection.implementation(part)
        if inner is not None and order.index(inner.owner) < rank:
            reason = f"{inner.owner}, which comes before it, takes {part.symbol.name} inside"
            has_parts = len([*islice(leaves_of(item.subsymbols), 2)]) > 1
            is_worth = implementation.fn is not item.symbol.fn or has_parts
            waits = is_worth and inner.owner in selection.fusion
            return Claim(None, (*declined, (implementation.owner, reason)), waits)
    return Claim(implementation, declined)
