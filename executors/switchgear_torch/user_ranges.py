"""User ranges: lines in a `record_function` block run in a range of its name, visible in profilers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.profiler import record_function

import switchgear as sg


class Ranged:
    """A function that runs in ranges of `record_function`, the outermost first."""

    def __init__(self, function: Callable[..., Any], names: tuple[str, ...]) -> None:
        self.function, self.names = function, names
        #: The name in a printed program.
        self.__name__ = re.sub(r"\W", "_", getattr(function, "__name__", "ranged"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        with contextlib.ExitStack() as stack:
            for name in self.names:
                stack.enter_context(record_function(name))
            return self.function(*args, **kwargs)


def user_ranges(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Run forward lines in the ranges around them; a backward runs in none, as in eager mode."""
    ranges = [*map(_ranges_around, trace.bound_symbols)]
    if not any(ranges):
        return trace
    pairs = zip(trace.bound_symbols, ranges, strict=True)
    return replace(trace, bound_symbols=tuple([_ranged(*pair) if pair[1] else pair[0] for pair in pairs]))


def _ranges_around(line: sg.BoundSymbol) -> tuple[str, ...]:
    """Return the ranges common to all operators of a line."""
    parts = line.subsymbols if line.fused_by else (line,)
    ranges = {part.source.ranges if part.source and not part.links else () for part in parts}
    return ranges.pop() if len(ranges) == 1 else ()


def _ranged(line: sg.BoundSymbol, names: tuple[str, ...]) -> sg.BoundSymbol:
    before = line.implementation
    if before is None:
        return line
    return line.with_implementation(replace(before, fn=Ranged(before.fn, names), path=""))
