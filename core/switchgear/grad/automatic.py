"""What is saved by default: as little as takes hardly longer; and under a budget.

Where no executor fuses, each line that is run again takes its time: what eager saves is saved. Where one does, what
depends on single elements costs next to nothing, for it runs where its result is read; it is never saved. Of all else,
as much is made again as takes little beside all of the program.
Under a budget, what takes the least time. "lean" is one, too: half of what "balanced" saves, or the default if that
is less.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from switchgear.errors import InvalidInput
from switchgear.grad.budget import Budget
from switchgear.grad.costs import cost
from switchgear.grad.differentiate import Joint
from switchgear.grad.partition import Partitioned, partition
from switchgear.registry.memory import MemoryOption, PricedMemory, budget_of

#: What is run again by default, beside what costs next to nothing, may take this part of a program.
_SHARE = 0.015
#: Fewer bytes than these are not worth that, nor the optimiser's time.
_FEW = 2**16
#: Less than this part of what eager saves is not worth making anything again.
_LITTLE = 1 / 64


def partition_as_asked(
    joint: Joint,
    overwritten: frozenset[str],
    memory: MemoryOption,
    bytes_in_eager: Callable[[], int],
    *,
    fuses: bool,
) -> Partitioned:
    """`partition`, with "auto" and budgets decided by the price of recomputation, if an executor `fuses`."""
    if memory == "auto":
        return _automatic(joint, overwritten, fuses)
    if memory == "lean":
        default, balanced = (
            _automatic(joint, overwritten, fuses),
            _saved(joint, overwritten, "balanced"),
        )
        half = min(balanced, default.saved_bytes) // 2
        limit = max(half, int(_LITTLE * bytes_in_eager()))
        return within_budget(default, joint, overwritten, limit, fuses=fuses)
    budget = budget_of(memory)
    if budget is None:
        return partition(joint, overwritten, memory)  # type: ignore[arg-type]
    eager = bytes_in_eager()
    limit = budget if isinstance(budget, int) else int(budget * eager)
    parts = within_budget(
        fastest(joint, overwritten, fuses=fuses), joint, overwritten, limit, fuses=fuses
    )
    if parts.saved_bytes > limit:
        longer = extra(joint, parts, fuses=fuses)
        raise InvalidInput(
            f"memory={memory!r} allows {limit:,} bytes to be saved for the backward, where eager saves {eager:,}; the "
            f"least possible is {parts.saved_bytes:,}, for which a step takes an estimated {longer:.0%} "
            "longer: give it that or more; sg.plan shows the price of more bytes"
        )
    return parts


def fastest(joint: Joint, overwritten: frozenset[str], *, fuses: bool) -> Partitioned:
    """What takes the least time, whatever it saves: nothing runs again but what costs next to nothing."""
    return partition(joint, overwritten, "auto" if fuses else "eager")


def within_budget(
    wanted: Partitioned, joint: Joint, overwritten: frozenset[str], limit: int, *, fuses: bool
) -> Partitioned:
    """`wanted` if it saves at most `limit` bytes, else what takes the least time of all that does, or the fewest."""
    if wanted.saved_bytes <= limit:
        return wanted
    return partition(joint, overwritten, "auto" if fuses else "balanced", Budget(bytes=limit))


def extra(joint: Joint, parts: Partitioned, *, fuses: bool = False) -> float:
    """What is made again, as an estimated part of the time that all else takes."""
    return cost(parts.again, fused=fuses) / (cost(joint.trace.bound_symbols, fused=fuses) or 1.0)


def _saved(joint: Joint, overwritten: frozenset[str], memory: PricedMemory) -> int:
    return partition(joint, overwritten, memory).saved_bytes


def _automatic(joint: Joint, overwritten: frozenset[str], fuses: bool) -> Partitioned:
    free = fastest(joint, overwritten, fuses=fuses)
    if not fuses or free.saved_bytes < _FEW:
        return free
    most = cost(free.again, fused=True) + _SHARE * cost(joint.trace.bound_symbols, fused=True)
    lean = partition(joint, overwritten, "auto", Budget(cost=most))
    return min(free, lean, key=attrgetter("saved_bytes"))
