"""Checks first: a call whose data does not match the trace fails before other lines run."""

from __future__ import annotations

from dataclasses import replace

from switchgear_core.errors import Unsupported
from switchgear_core.ir.symbol import CHECK, EXACT, LATE, BoundSymbol, changed
from switchgear_core.ir.trace import Trace


def checks_first(trace: Trace) -> Trace:
    """Move checks, and the lines they need, to the front: a failed check then has drawn no random numbers."""
    needed: set[str] = set()
    first: list[BoundSymbol] = []
    rest: list[BoundSymbol] = []
    pending = list(trace.bound_symbols)
    while pending:
        item = pending.pop()
        is_first = CHECK in item.tags and LATE not in item.tags
        if not is_first and needed.isdisjoint(proxy.name for proxy in item.outputs):
            rest.append(item)
        elif not item.is_random:
            needed.update(proxy.name for proxy in item.inputs)
            first.append(changed(item, tags=item.tags | {EXACT}))
        elif item.is_leaf:
            raise Unsupported(
                f"{item.symbol.name}, called at {item.source}, draws random numbers that a check of data depends on, "
                "in a grad rule or by a pass of a plugin; leave that out, or compute the checked value outside"
            )
        else:
            pending.extend(item.subsymbols)
    return replace(trace, bound_symbols=(*reversed(first), *reversed(rest)))
