"""The saved tensors by default, as few as cost hardly any time, and under a budget.

Where no executor fuses, each recomputed line takes its full time: eager's tensors are saved. Where an executor fuses,
elementwise lines cost next to nothing, because they run where their results are read; their results are never saved.
Other lines are recomputed as far as that takes little time compared with the program. Under a budget, the fastest
solution is chosen. "lean" is a budget, too: half of the bytes of "balanced", or of the default if those are fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from switchgear_core.errors import InvalidInput
from switchgear_core.grad.budget import Budget
from switchgear_core.grad.costs import cost
from switchgear_core.grad.differentiate import Joint
from switchgear_core.grad.partition import Partitioned, partition
from switchgear_core.registry.memory import MemoryOption, PricedMemory, budget_of

#: The part of a program's time for recomputation by default, without lines that cost next to nothing.
_SHARE = 0.015
#: The bytes below which recomputation and the optimiser's time do not pay off.
_FEW = 2**16
#: The part of eager's bytes below which recomputation does not pay off.
_LITTLE = 1 / 64


def partition_as_asked(
    joint: Joint,
    overwritten: frozenset[str],
    memory: MemoryOption,
    bytes_in_eager: Callable[[], int],
    *,
    fuses: bool,
) -> Partitioned:
    """Partition a joint trace; "auto" and budgets weigh the price of recomputation, if an executor `fuses`.

    Raises:
        InvalidInput: the budget cannot be met.
    """
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
    """Partition in the fastest way, regardless of saved bytes: only lines that cost next to nothing are recomputed."""
    return partition(joint, overwritten, "auto" if fuses else "eager")


def within_budget(
    wanted: Partitioned, joint: Joint, overwritten: frozenset[str], limit: int, *, fuses: bool
) -> Partitioned:
    """Return `wanted` if it saves at most `limit` bytes, else the fastest partition within the limit, or the least."""
    if wanted.saved_bytes <= limit:
        return wanted
    return partition(joint, overwritten, "auto" if fuses else "balanced", Budget(bytes=limit))


def extra(joint: Joint, parts: Partitioned, *, fuses: bool = False) -> float:
    """Return the estimated time of the recomputed lines, as a part of the time of all other lines."""
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
