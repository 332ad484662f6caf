"""Names at run time: a pass that runs each line of a program in a range that profilers show."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.profiler import record_function

from switchgear_core.ir.choice import Implementation
from switchgear_core.ir.symbol import AFTER, BOX, DEL, BoundSymbol
from switchgear_core.ir.trace import Trace
from switchgear_core.registry.hookspecs import PassContext, PassPlacement
from switchgear_core.showing import counted

#: Lines without a call.
_SILENT = (AFTER, BOX, DEL)


class Ranged:
    """A function that runs in a range of `torch.profiler.record_function`."""

    def __init__(self, function: Callable[..., Any], label: str) -> None:
        self.function, self.label = function, label
        #: The name in a printed program.
        self.__name__ = re.sub(r"\W", "_", getattr(function, "__name__", "ranged"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        with record_function(self.label):
            return self.function(*args, **kwargs)


def label_of(item: BoundSymbol) -> str:
    """Return the label of a line's range: the user's line and the operator; for a backward line also the forward's."""
    operator = item.symbol.name
    if item.fused_by:
        parts = [link.forward for part in item.subsymbols for link in part.links] or item.subsymbols
        places = [*dict.fromkeys(str(part.source) for part in parts if part.source)]
        ends = " to ".join(dict.fromkeys((*places[:1], *places[-1:])))
        return f"{counted(len(item.subsymbols), 'operator')}, {ends}  {operator}"
    forwards = [*dict.fromkeys(link.forward for link in item.links)]
    sources = dict.fromkeys(str(line.source) for line in forwards or [item] if line.source)
    names = dict.fromkeys(line.symbol.name for line in forwards)
    gradient = f"gradient of {', '.join(names)}: " if names else ""
    return f"{', '.join(sources)}  {gradient}{operator}".lstrip()


def ranged(note: Callable[[BoundSymbol, str], object] = lambda item, label: None) -> PassPlacement:
    """Return a pass that runs each line in a range and calls `note` with each line and its label."""

    def run(trace: Trace, context: PassContext) -> Trace:
        body = [item if item.symbol in _SILENT else in_range(item) for item in trace.bound_symbols]
        return replace(trace, bound_symbols=tuple(body))

    def in_range(item: BoundSymbol) -> BoundSymbol:
        label = label_of(item)
        note(item, label)
        before = item.implementation or Implementation("torch", item.symbol.fn)
        return item.with_implementation(replace(before, fn=Ranged(before.fn, label), path=""))

    return PassPlacement("ranges", "after_claim", run)


#: For `sg.jit(f, passes=[sg.ranges])`: profilers, and NVTX under `emit_nvtx`, show each line with its place.
ranges = ranged()
