"""What is saved by default: as little as takes no longer.

Where no executor fuses, each line that is run again takes its time: what eager saves is saved. Where one does, what
depends on single elements costs next to nothing, for it runs where its result is read; it is never saved. What goes
over its arguments once more (reductions, normalisations) is run again where that is little beside all of the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from switchgear.grad.differentiate import Joint
from switchgear.grad.partition import Partitioned, partition
from switchgear.grad.saving import is_view, weight_of
from switchgear.ir.composites import leaves_of
from switchgear.ir.proxy import bytes_of, hint_of
from switchgear.ir.symbol import RECOMPUTED, BoundSymbol
from switchgear.who.memory import Memory

#: What is run again may cost this part of a program.
_SHARE = 0.03
#: Operations of a matrix product in the time that it takes to move a byte, on a CPU; on a GPU there are more.
_OPERATIONS = 8


def partition_as_asked(
    joint: Joint, overwritten: frozenset[str], memory: Memory, *, fuses: bool
) -> Partitioned:
    """`partition`, with "auto" decided: by what making values again would cost, if an executor `fuses`."""
    if memory != "auto":
        return partition(joint, overwritten, memory)
    if not fuses:
        return partition(joint, overwritten, "eager")
    lean = partition(joint, overwritten, "balanced")
    again = [item for item in lean.backward.bound_symbols if RECOMPUTED in item.tags]
    if _cost(again) <= _SHARE * _cost(joint.trace.bound_symbols):
        return lean
    return partition(joint, overwritten, "auto")


def _cost(items: Iterable[BoundSymbol]) -> float:
    """What lines cost, in bytes moved."""
    return sum(_leaf_cost(leaf) for leaf in leaves_of(items) if not is_view(leaf))


def _leaf_cost(leaf: BoundSymbol) -> float:
    moved = bytes_of(*leaf.inputs, *leaf.outputs)
    weight = weight_of(leaf)
    if weight is not None:
        return weight * moved
    return max(moved, _operations(leaf) / _OPERATIONS)


def _operations(leaf: BoundSymbol) -> float:
    """Those of a matrix product or of what is made of such; of batches, as if each were of its own."""
    sizes = sorted(
        (math.prod(map(hint_of, proxy.shape)) for proxy in (*leaf.inputs, *leaf.outputs)),
        reverse=True,
    )
    if len(sizes) < 3:
        return 0.0
    made = leaf.outputs[0]
    batch = hint_of(made.shape[0]) if len(made.shape) > 2 else 1
    return 2 * math.sqrt(math.prod(sizes[:3]) / batch)
