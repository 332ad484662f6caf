"""What is saved by default: as little as takes no longer; and under a budget.

Where no executor fuses, each line that is run again takes its time: what eager saves is saved. Where one does, what
depends on single elements costs next to nothing, for it runs where its result is read; it is never saved. What goes
over its arguments once more (reductions, normalisations) is run again where that is little beside all of the program.
"lean" is a budget, too: half of what "balanced" saves.
"""

from __future__ import annotations

from switchgear.errors import InvalidInput
from switchgear.grad.costs import cost
from switchgear.grad.differentiate import Joint
from switchgear.grad.partition import Partitioned, partition
from switchgear.who.memory import MemoryOption, PricedMemory, budget_of

#: What is run again may cost this part of a program.
_SHARE = 0.03
#: Less than this part of what eager saves is not worth making anything again.
_LITTLE = 1 / 64


def partition_as_asked(
    joint: Joint, overwritten: frozenset[str], memory: MemoryOption, *, fuses: bool
) -> Partitioned:
    """`partition`, with "auto" and budgets decided by what making values again would cost, if an executor `fuses`."""
    if memory == "auto":
        return _automatic(joint, overwritten, fuses)
    if memory == "lean":
        half = _saved(joint, overwritten, "balanced") // 2
        limit = max(half, int(_LITTLE * _saved(joint, overwritten, "eager")))
        return within_budget(joint, overwritten, limit, fuses=fuses)
    budget = budget_of(memory)
    if budget is None:
        return partition(joint, overwritten, memory)  # type: ignore[arg-type]
    eager = _saved(joint, overwritten, "eager")
    limit = budget if isinstance(budget, int) else int(budget * eager)
    parts = within_budget(joint, overwritten, limit, fuses=fuses)
    if parts.saved_bytes > limit:
        longer = extra(joint, parts, fuses=fuses)
        raise InvalidInput(
            f"memory={memory!r} allows {limit:,} bytes to be saved for the backward, where eager saves {eager:,}; the "
            f"least possible is {parts.saved_bytes:,}, for which a step takes an estimated {longer:.0%} "
            "longer: give it that or more; sg.plan shows what more bytes cost"
        )
    return parts


def within_budget(
    joint: Joint, overwritten: frozenset[str], limit: int, *, fuses: bool
) -> Partitioned:
    """What is saved by default, or so much less of it that it takes at most `limit` bytes, or the fewest possible."""
    parts = _automatic(joint, overwritten, fuses)
    if parts.saved_bytes <= limit:
        return parts
    return partition(joint, overwritten, "auto" if fuses else "balanced", limit)


def extra(joint: Joint, parts: Partitioned, *, fuses: bool = False) -> float:
    """What is made again, as an estimated part of the time that all else takes."""
    return cost(parts.again, fused=fuses) / (cost(joint.trace.bound_symbols, fused=fuses) or 1.0)


def _saved(joint: Joint, overwritten: frozenset[str], memory: PricedMemory) -> int:
    return partition(joint, overwritten, memory).saved_bytes


def _automatic(joint: Joint, overwritten: frozenset[str], fuses: bool) -> Partitioned:
    if not fuses:
        return partition(joint, overwritten, "eager")
    lean = partition(joint, overwritten, "balanced")
    return lean if extra(joint, lean) <= _SHARE else partition(joint, overwritten, "auto")
