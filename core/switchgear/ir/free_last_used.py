"""Free every value after its last use, or by the call that uses it last, where that can be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from switchgear.ir.printing import BOXED
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.symbol import BOX, DEL, BoundSymbol, proxies
from switchgear.ir.trace import Trace


def free_last_used(trace: Trace) -> Trace:
    """Add a `del` after the last use of each input and intermediate that is no output.

    Boxed implementations are given their arguments in a list that is the last to hold those that end, unless they read
    anything but floating-point numbers: an index may be an error, and PyTorch's own is then to be had from them.
    """
    alive = {proxy.name for proxy in proxies(trace.outputs)} | trace.tensors.keys()
    body: list[BoundSymbol] = []
    for bound_symbol in reversed(trace.bound_symbols):
        implementation = bound_symbol.implementation
        floating = all(proxy.dtype.is_floating_point for proxy in bound_symbol.inputs)
        if implementation is not None and implementation.boxed and floating:
            body += _ended(bound_symbol.outputs, alive)
            body.append(replace(bound_symbol, args=(BOXED,)))
            body += _ended(bound_symbol.inputs, alive)
            body.append(BoundSymbol(BOX, bound_symbol.args, {}, None))
        else:
            body += _ended((*bound_symbol.inputs, *bound_symbol.outputs), alive)
            body.append(bound_symbol)
    return replace(trace, bound_symbols=tuple(reversed(body)))


def _ended(used: Iterable[TensorProxy], alive: set[str]) -> list[BoundSymbol]:
    """The `del` of those that nothing that follows reads; they are `alive` before."""
    ending = {proxy.name: proxy for proxy in used if proxy.name not in alive}
    alive.update(ending)
    return [BoundSymbol(DEL, tuple(ending.values()), {}, None)] if ending else []
