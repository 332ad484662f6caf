"""The verifier: is a trace well formed?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from switchgear.errors import InvalidTrace
from switchgear.ir.aliasing import storages, written_arguments
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.symbol import AFTER, DEL
from switchgear.ir.trace import Trace
from switchgear.source_text import is_name

_CONTEXT = 3


def verify(trace: Trace) -> Trace:
    """`trace` itself, or `InvalidTrace` with the fault, the lines around it, and the pass that made the trace.

    Checked: every value is defined once and before it is used, agrees with its definition wherever it is used, is not
    used after it is freed, and every output exists; what a call writes to is no constant, and an input only if the
    trace says so, and neither it nor a view of it is used under an older name afterwards.
    """
    found = next(_faults(trace), None)
    if found is None:
        return trace
    index, message = found
    body = trace.python(link=False).splitlines()[-len(trace.bound_symbols) - 1 :]
    shown = [f"{'>' if number == index else ' '} {line}" for number, line in enumerate(body)]
    around = "\n".join(shown[max(0, index - _CONTEXT) : index + _CONTEXT + 1])
    made_by = trace.provenance[-1].name if trace.provenance else "no pass"
    raise InvalidTrace(f"{message}\n  in trace {trace.name!r} as made by {made_by}:\n{around}")


def _faults(trace: Trace) -> Iterator[tuple[int, str]]:
    """What is wrong, and in which line of the body; all that follows the first may follow from it."""
    defined: dict[str, TensorProxy] = {}
    freed: set[str] = set()
    overwritten: set[str] = set()
    home = storages(trace.bound_symbols)
    sharing: defaultdict[str, set[str]] = defaultdict(set)
    given = trace.tensors.keys() | {proxy.name for proxy in trace.inputs}

    def misused(proxies: Iterable[TensorProxy], read: bool = True) -> Iterator[str]:
        for proxy in proxies:
            if proxy.name in overwritten and read:
                yield f"{proxy.name} is used after its memory is written to"
            if proxy.name in trace.tensors:
                continue
            if proxy.name in freed:
                yield f"{proxy.name} is used after it is freed"
            elif proxy.name not in defined:
                yield f"{proxy.name} is used before it is defined"
            elif defined[proxy.name] != proxy:
                yield f"{proxy.name} is used as {proxy} but defined as {defined[proxy.name]}"

    for proxy in trace.inputs:
        if not is_name(proxy.name):
            yield 0, f"{proxy.name!r} is no name"
        if proxy.name in defined:
            yield 0, f"input {proxy.name} is defined twice"
        defined[proxy.name] = proxy
        sharing[proxy.name].add(proxy.name)
    for index, bound_symbol in enumerate(trace.bound_symbols):
        is_read, renames = bound_symbol.symbol is not DEL, bound_symbol.symbol is AFTER
        for place, proxy in enumerate(bound_symbol.inputs):
            for fault in misused([proxy], read=is_read and not (renames and place)):
                yield index, fault
        written = bound_symbol.inputs[1:] if renames else written_arguments(bound_symbol)
        for proxy in written:
            memory = home.get(proxy.name, proxy.name)
            if memory in given - trace.written.keys():
                yield index, f"{proxy.name} is written to, which is not the trace's own"
            overwritten |= sharing.pop(memory, set())
        for proxy in bound_symbol.outputs:
            if not is_name(proxy.name):
                yield index, f"{proxy.name!r} is no name"
            if proxy.name in defined or proxy.name in trace.tensors:
                yield index, f"{proxy.name} is defined twice"
            defined[proxy.name] = proxy
            sharing[home.get(proxy.name, proxy.name)].add(proxy.name)
        if bound_symbol.symbol is DEL:
            freed.update(proxy.name for proxy in bound_symbol.inputs)
    for fault in misused(proxy for proxy in trace.outputs if proxy is not None):
        yield len(trace.bound_symbols), f"output: {fault}"
