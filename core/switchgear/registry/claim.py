"""Claim: every bound symbol gets the executor that runs it.

A composite goes to the first executor that accepts it, unless one before that takes a part of it; if that one fuses,
the parts remember the composite (`BoundSymbol.wholes`), for it may give them back. Each decision stands on the line
that it is about (`BoundSymbol.choices`), those of the composites that a line comes out of before its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import NamedTuple

from switchgear.errors import ExecutorUnavailable
from switchgear.ir.choice import Choice, Implementation
from switchgear.ir.symbol import EXACT, IN_PLACE, BoundSymbol, changed, with_parts
from switchgear.ir.trace import Trace
from switchgear.registry.selection import Reasons, Selection


def claim(trace: Trace, selection: Selection, refusals: Reasons = ()) -> Trace:
    """Give every bound symbol an implementation; what nobody takes whole is replaced by its decomposition.

    What a fusion executor takes keeps its decomposition, for it may have to be claimed again: then `refusals` say who
    does not run it after all.
    """
    fusion, apart, exact = selection.fusion, selection.without_fusion(), selection.exact()
    body: list[BoundSymbol] = []
    pending = deque(trace.bound_symbols)
    while pending:
        item = pending.popleft()
        implementation, declined, waits = claimant(
            item, exact if EXACT in item.tags else apart if IN_PLACE in item.tags else selection
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
    """Who runs a bound symbol whole, if anybody, and who declined.

    `waits`: somebody has code of its own for the whole, and would run it if one that fuses gave back a part of it.
    """

    implementation: Implementation | None
    declined: Reasons
    waits: bool = False


def claimant(item: BoundSymbol, selection: Selection) -> Claim:
    """Who runs a bound symbol whole: the first executor that accepts it, unless one before it takes a part of it.

    One that is preferred for it is before everybody.
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
            has_own = implementation.fn is not item.symbol.fn
            waits = has_own and inner.owner in selection.fusion
            return Claim(None, (*declined, (implementation.owner, reason)), waits)
    return Claim(implementation, declined)
