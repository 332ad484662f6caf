"""Claim: every bound symbol gets the executor that runs it.

A composite goes to the first executor that accepts it, unless one before that takes a part of it. Each decision stands
on the line that it is about (`BoundSymbol.choices`), those of the composites that a line comes out of before its own.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from switchgear.errors import ExecutorUnavailable
from switchgear.ir.choice import Choice, Implementation
from switchgear.ir.symbol import BoundSymbol, changed, with_parts
from switchgear.ir.trace import Trace
from switchgear.who.selection import Reasons, Selection


def claim(trace: Trace, selection: Selection, refusals: Reasons = ()) -> Trace:
    """Give every bound symbol an implementation; what nobody takes whole is replaced by its decomposition.

    What a fusion executor takes keeps its decomposition, for it may have to be claimed again: then `refusals` say who
    does not run it after all.
    """
    fusion = selection.fusion
    body: list[BoundSymbol] = []
    pending = deque(trace.bound_symbols)
    while pending:
        item = pending.popleft()
        implementation, declined = claimant(item, selection)
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
            pending.extendleft(
                changed(part, links=part.links or item.links, choices=choices)
                for part in reversed(item.subsymbols)
            )
    return replace(trace, bound_symbols=tuple(body))


def claimant(item: BoundSymbol, selection: Selection) -> tuple[Implementation | None, Reasons]:
    """Who runs a bound symbol whole: the first executor that accepts it, unless one before it takes a part of it."""
    implementation, declined = selection.implementation(item)
    if implementation is None or item.is_leaf:
        return implementation, declined
    order = [executor.name for executor in selection.executors]
    rank = order.index(implementation.owner)
    for part in with_parts(item.subsymbols) if rank else ():
        inner, _ = selection.implementation(part)
        if inner is not None and order.index(inner.owner) < rank:
            reason = f"{inner.owner}, which comes before it, takes {part.symbol.name} inside"
            return None, (*declined, (implementation.owner, reason))
    return implementation, declined
