"""Free every value after its last use, or where possible by the last call that uses it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from switchgear_core.ir.printing import BOXED
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BOX, DEL, BoundSymbol, proxies
from switchgear_core.ir.trace import Trace


def free_last_used(trace: Trace) -> Trace:
    """Add a `del` after the last use of each input and intermediate that is not an output.

    Boxed implementations receive their arguments in a list, the last holder of values that end there. Exceptions are
    calls that read other than floating-point numbers: an index may be invalid, and the arguments are then needed for
    PyTorch's own error.
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


def _ended(operands: Iterable[TensorProxy], alive: set[str]) -> list[BoundSymbol]:
    """Return the `del` of values that no later line reads; mark them as `alive` for earlier lines."""
    ending = {proxy.name: proxy for proxy in operands if proxy.name not in alive}
    alive.update(ending)
    return [BoundSymbol(DEL, tuple(ending.values()), {}, None)] if ending else []
