"""The verifier: is a trace well formed?"""

from __future__ import annotations

from .errors import InvalidTrace
from .printing import trace_source
from .proxy import TensorProxy
from .symbol import DEL, BoundSymbol
from .trace import Trace

_CONTEXT = 3


def verify(trace: Trace) -> Trace:
    """`trace` itself, or `InvalidTrace` with the fault, the lines around it, and the pass that made the trace.

    Checked: every value is defined once and before it is used, agrees with its definition wherever it is used, is not
    used after it is freed, and every output exists.
    """
    defined: dict[str, TensorProxy] = {}
    freed: set[str] = set()
    for proxy in trace.inputs:
        if proxy.name in defined:
            raise _fault(trace, 0, f"input {proxy.name} is defined twice")
        defined[proxy.name] = proxy
    for index, bound_symbol in enumerate(trace.bound_symbols):
        fault = _uses(bound_symbol.inputs, defined, freed, trace)
        fault = fault or _definitions(bound_symbol, defined, trace)
        if fault:
            raise _fault(trace, index, fault)
        if bound_symbol.symbol is DEL:
            freed.update(proxy.name for proxy in bound_symbol.inputs)
    outputs = tuple(proxy for proxy in trace.outputs if proxy is not None)
    fault = _uses(outputs, defined, freed, trace)
    if fault:
        raise _fault(trace, len(trace.bound_symbols), f"output: {fault}")
    return trace


def _uses(used: tuple[TensorProxy, ...], defined: dict[str, TensorProxy], freed: set[str], trace: Trace) -> str:
    for proxy in used:
        if proxy.name in trace.constants:
            continue
        if proxy.name in freed:
            return f"{proxy.name} is used after it is freed"
        if proxy.name not in defined:
            return f"{proxy.name} is used before it is defined"
        if defined[proxy.name] != proxy:
            return f"{proxy.name} is used as {proxy} but defined as {defined[proxy.name]}"
    return ""


def _definitions(bound_symbol: BoundSymbol, defined: dict[str, TensorProxy], trace: Trace) -> str:
    for proxy in bound_symbol.outputs:
        if proxy.name in defined or proxy.name in trace.constants:
            return f"{proxy.name} is defined twice"
        defined[proxy.name] = proxy
    return ""


def _fault(trace: Trace, index: int, message: str) -> InvalidTrace:
    lines = trace_source(trace).splitlines()
    body = lines[len(lines) - len(trace.bound_symbols) - 1 :]
    shown = [
        f"{'>' if number == index else ' '} {line}"
        for number, line in enumerate(body)
        if abs(number - index) <= _CONTEXT
    ]
    made_by = trace.provenance[-1].name if trace.provenance else "no pass"
    return InvalidTrace(f"{message}\n  in trace {trace.name!r} as made by {made_by}:\n" + "\n".join(shown))
