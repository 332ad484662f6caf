"""The verifier of traces: it checks that a trace is well formed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from switchgear_core.errors import InvalidTrace
from switchgear_core.ir.aliasing import storages, written_arguments
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import AFTER, DEL, BoundSymbol
from switchgear_core.ir.trace import Trace, lines_of
from switchgear_core.source_text import is_name

_CONTEXT = 3


def verify(trace: Trace) -> Trace:
    """Return `trace`; raise `InvalidTrace` with the fault, the lines around it, and the pass that made the trace.

    Checked: every value is defined once and before its uses, agrees with its definition in each use, and is not used
    after it is freed; every output exists. A written value is not a constant, and an input only if the trace says so;
    neither the value nor its views are used under an older name afterwards.
    """
    fault = next(_faults(trace), None)
    if fault is None:
        return trace
    index, message = fault
    body = enumerate(lines_of(trace))
    context = [f"{'>' if number == index else ' '} {line}" for number, line in body]
    around = "\n".join(context[max(0, index - _CONTEXT) : index + _CONTEXT + 1])
    made_by = trace.provenance[-1].name if trace.provenance else "no pass"
    raise InvalidTrace(f"{message}\n  in trace {trace.name!r} as made by {made_by}:\n{around}")


def _faults(trace: Trace) -> Iterator[tuple[int, str]]:
    """Yield each fault with its line of the body; faults after the first may be consequences."""
    names = _Names(trace)
    for proxy in trace.inputs:
        for fault in names.define(proxy, f"input {proxy.name}"):
            yield 0, fault
    for index, bound_symbol in enumerate(trace.bound_symbols):
        for fault in names.run(bound_symbol):
            yield index, fault
    for fault in names.use(proxy for proxy in trace.outputs if proxy is not None):
        yield len(trace.bound_symbols), f"output: {fault}"


class _Names:
    """The names of a trace, line by line: defined, freed, or in overwritten memory."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._defined: dict[str, TensorProxy] = {}
        self._freed: set[str] = set()
        self._overwritten: set[str] = set()
        self._memory = storages(trace.bound_symbols)
        self._sharing: defaultdict[str, set[str]] = defaultdict(set)
        inputs = trace.tensors.keys() | {proxy.name for proxy in trace.inputs}
        self._not_written = inputs - trace.writes.keys()

    def run(self, line: BoundSymbol) -> Iterator[str]:
        """Yield the faults of the next line."""
        is_read, renames = line.symbol is not DEL, line.symbol is AFTER
        for proxy in line.inputs:
            yield from self.use([proxy], is_read and not (renames and proxy is line.inputs[-1]))
        for proxy in line.inputs[1:] if renames else written_arguments(line):
            memory = self._memory.get(proxy.name, proxy.name)
            if memory in self._not_written:
                yield f"{proxy.name} is written to, which is not the trace's own"
            self._overwritten |= self._sharing.pop(memory, set())
        for proxy in line.outputs:
            yield from self.define(proxy, proxy.name)
        if not is_read:
            self._freed.update(proxy.name for proxy in line.inputs)

    def define(self, proxy: TensorProxy, label: str) -> Iterator[str]:
        """Yield the faults of a definition."""
        name = proxy.name
        if not is_name(name):
            yield f"{name!r} is no name"
        if name in self._defined or (name in self._trace.tensors and name == label):
            yield f"{label} is defined twice"
        self._defined[name] = proxy
        self._sharing[self._memory.get(name, name)].add(name)

    def use(self, proxies: Iterable[TensorProxy], is_read: bool = True) -> Iterator[str]:
        """Yield the faults of uses; without `is_read`, only the name is used."""
        for proxy in proxies:
            if proxy.name in self._overwritten and is_read:
                yield f"{proxy.name} is used after its memory is written to"
            if proxy.name in self._trace.tensors:
                continue
            if proxy.name in self._freed:
                yield f"{proxy.name} is used after it is freed"
            elif proxy.name not in self._defined:
                yield f"{proxy.name} is used before it is defined"
            elif self._defined[proxy.name] != proxy:
                definition = self._defined[proxy.name]
                yield f"{proxy.name} is used as {proxy} but defined as {definition}"
