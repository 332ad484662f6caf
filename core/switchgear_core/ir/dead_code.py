"""Dead code elimination."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, proxies
from switchgear_core.ir.trace import Trace


def dead_code(trace: Trace) -> Trace:
    """Remove lines needed by no output. Random draws stay, because the stream must advance as in eager.

    Checks and effects stay too, with the lines that they need.
    """
    return replace(trace, bound_symbols=live(trace.bound_symbols, proxies(trace.outputs)))


def live(
    bound_symbols: tuple[BoundSymbol, ...], outputs: Iterable[TensorProxy]
) -> tuple[BoundSymbol, ...]:
    """Return the bound symbols needed by the outputs, and those that always stay."""
    needed = {proxy.name for proxy in outputs}
    lines: list[BoundSymbol] = []
    for bound_symbol in reversed(bound_symbols):
        names = [proxy.name for proxy in bound_symbol.outputs]
        if not needed.isdisjoint(names) or bound_symbol.stays:
            needed.update([proxy.name for proxy in bound_symbol.inputs])
            lines.append(bound_symbol)
    return tuple(reversed(lines))
