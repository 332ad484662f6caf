"""Free every value after its last use."""

from __future__ import annotations

from dataclasses import replace

from switchgear.symbol import DEL, BoundSymbol, proxies
from switchgear.trace import Trace


def free_last_used(trace: Trace) -> Trace:
    """Add a `del` after the last use of each input and intermediate that is no output."""
    alive = {proxy.name for proxy in proxies(trace.outputs)} | trace.constants.keys()
    body: list[BoundSymbol] = []
    for bound_symbol in reversed(trace.bound_symbols):
        used = (*bound_symbol.inputs, *bound_symbol.outputs)
        ending = {proxy.name: proxy for proxy in used if proxy.name not in alive}
        alive.update(ending)
        if ending:
            body.append(BoundSymbol(DEL, tuple(ending.values()), {}, None))
        body.append(bound_symbol)
    return replace(trace, bound_symbols=tuple(reversed(body)))
