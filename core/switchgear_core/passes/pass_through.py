"""Pass through: calls that return an argument, and matter only to gradients, are not run.

The pass follows claiming, because executors of a composite see whether its inputs require grad. The pass precedes the
search for regions, because such a call would separate two regions.
"""

from __future__ import annotations

from dataclasses import replace

from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.ir.trace import Trace
from switchgear_core.ir.writes import IDENTITY, SET_VALUE

_RETURN_THEIR_LAST = (SET_VALUE, IDENTITY)


def pass_through(trace: Trace) -> Trace:
    """Replace the result by the argument that the implementation would return."""
    same: dict[str, TensorProxy] = {}
    body: list[BoundSymbol] = []
    for call in trace.bound_symbols:
        item = call.reading(same)
        if (
            item.symbol in _RETURN_THEIR_LAST
            and item.implementation
            and item.implementation.fn is item.symbol.fn
        ):
            returned = item.inputs[-len(item.outputs) :]
            same.update(
                (output.name, proxy) for output, proxy in zip(item.outputs, returned, strict=True)
            )
        else:
            body.append(item)
    if not same:
        return trace
    outputs = tuple([proxy and same.get(proxy.name, proxy) for proxy in trace.outputs])
    return replace(trace, bound_symbols=tuple(body), outputs=outputs)
