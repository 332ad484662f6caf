"""Marks on the lines that compute with DTensors."""

from __future__ import annotations

import importlib
from dataclasses import replace

from switchgear_core.ir.symbol import EXACT, BoundSymbol, changed
from switchgear_core.ir.trace import Trace
from switchgear_core.registry.hookspecs import PassContext

#: The tag of lines with DTensors among their arguments or results.
SHARDED = "dtensor"


def check(trace: Trace, context: PassContext) -> Trace:
    """Refuse a trace with operators, such as those of gradients, that DTensors lack; mark the lines of another."""
    if not any(SHARDED in line.tags for line in trace.bound_symbols):
        return trace
    importlib.import_module("switchgear_dtensors.trial").run_on_replicas(trace, context.count)
    return mark(trace, context)


def mark(trace: Trace, context: PassContext) -> Trace:
    """Leave lines with DTensors, and lines of their gradients, to PyTorch: other executors get plain tensors alone."""
    lines = [changed(line, tags=line.tags | {EXACT}) if is_sharded(line) else line for line in trace.bound_symbols]
    return trace if lines == [*trace.bound_symbols] else replace(trace, bound_symbols=tuple(lines))


def join(trace: Trace, context: PassContext) -> Trace:
    """Join the lines with DTensors, to run most of them on local tensors."""
    if not any(map(is_sharded, trace.bound_symbols)):
        return trace
    joined: Trace = importlib.import_module("switchgear_dtensors.local").join(
        trace, is_fixed=not context.gives_gradients
    )
    return joined


def is_sharded(line: BoundSymbol) -> bool:
    """Check whether a line computes with DTensors, or the gradients of one that does."""
    return SHARDED in line.tags or any(SHARDED in link.forward.tags for link in line.links)
