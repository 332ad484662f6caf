"""Stages: the traces of a program, as a list with one descriptive line for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from switchgear_core.ir.symbol import AFTER, BOX, DEL
from switchgear_core.ir.trace import Trace
from switchgear_core.showing import Listing, counted

#: The effect of each pass, by its name.
ABOUT = {
    "capture": "calls as the function makes them",
    "inner_gradients": "gradients that the function computes, as operators",
    "dead_code": "without results that nothing reads",
    "differentiate": "forward and backward in one",
    "undefined_grads": "without gradients that are undefined",
    "fold_constants": "calls of constants alone computed once",
    "no_ops": "without calls that return their argument",
    "common_subexpressions": "equal calls made once",
    "partition": "parted into forward and backward",
    "mark_writes": "calls that may write in place marked",
    "checks_first": "checks before everything that draws or writes",
    "claim": "each call with its executor",
    "pass_through": "without calls that return their argument when they run",
    "fuse": "each region one call",
    "reinplace": "results written into memory that nothing reads any more",
    "free_last_used": "freed after the last use: this runs",
}


class Stages(Listing[Trace]):
    """Traces in the order of their passes; shows name, operators, executors and meaning of each."""

    __slots__ = ()

    def rows(self) -> Iterator[str]:
        """Yield the text of each trace."""
        for index, trace in enumerate(self):
            made_by = trace.provenance[-1].name if trace.provenance else ""
            about = ABOUT.get(made_by, "as a plugin's pass left it" if made_by else "")
            count, owners = _operators(trace)
            runs = f"by {', '.join(owners)}  " if owners else ""
            yield f"{index:3}  {made_by:21}  {trace.name:11}  {count:6,} operators  {runs}{about}"


def _operators(trace: Trace) -> tuple[int, list[str]]:
    """Count the operators of a trace, in regions too, and the operators of each executor."""
    counts, regions = Counter[str](), Counter[str]()
    total = 0
    for item in trace.bound_symbols:
        if item.symbol in (AFTER, BOX, DEL):
            continue
        count = len(item.subsymbols) if item.fused_by else 1
        total += count
        regions[item.fused_by] += 1
        if item.implementation is not None:
            counts[item.implementation.owner] += count
    fused = {owner: f" in {counted(many, 'region')}" for owner, many in regions.items()}
    return total, [f"{name} {count:,}{fused.get(name, '')}" for name, count in counts.items()]
