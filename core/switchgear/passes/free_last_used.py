"""Free every value after its last use."""

from __future__ import annotations

from dataclasses import replace

from switchgear.proxy import TensorProxy
from switchgear.symbol import DEL, BoundSymbol
from switchgear.trace import Trace


def free_last_used(trace: Trace) -> Trace:
    """Add a `del` after the last use of each input and intermediate that is no output."""
    alive = {proxy.name for proxy in trace.outputs if proxy is not None} | trace.constants.keys()
    body: list[BoundSymbol] = []
    for bound_symbol in reversed(trace.bound_symbols):
        ending: dict[str, TensorProxy] = {}
        for proxy in (*bound_symbol.inputs, *bound_symbol.outputs):
            if proxy.name not in alive:
                alive.add(proxy.name)
                ending[proxy.name] = proxy
        if ending:
            body.append(BoundSymbol(DEL, tuple(ending.values()), {}, None))
        body.append(bound_symbol)
    return replace(trace, bound_symbols=tuple(reversed(body)))
