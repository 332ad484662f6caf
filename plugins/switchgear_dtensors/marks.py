"""Marks on the lines that compute with DTensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from switchgear_core.ir.symbol import EXACT, changed
from switchgear_core.ir.trace import Trace

#: The tag of lines with DTensors among their arguments or results.
SHARDED = "dtensor"


def mark(trace: Trace, context: Any) -> Trace:
    """Leave lines with DTensors, and lines of their gradients, to PyTorch: other executors get plain tensors alone."""
    lines = [
        changed(line, tags=line.tags | {EXACT})
        if SHARDED in line.tags or any(SHARDED in link.forward.tags for link in line.links)
        else line
        for line in trace.bound_symbols
    ]
    return replace(trace, bound_symbols=tuple(lines))
