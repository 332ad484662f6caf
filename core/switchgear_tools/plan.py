"""Plan: what a call saves for its backward under each budget, and what that costs; found out on fakes, nothing runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from switchgear.errors import InvalidInput
from switchgear.grad.automatic import extra, fastest, within_budget
from switchgear.grad.partition import Partitioned, partition
from switchgear.runtime.fallback import Fallback
from switchgear.showing import Shown
from switchgear_tools.before_call import compiler_for, undecided
from switchgear_tools.columns import aligned
from switchgear_tools.entries import peak

#: The budgets that are looked at, beside no bytes at all.
_PARTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


@dataclass(frozen=True, slots=True)
class PlannedMemory:
    """What a budget comes to.

    `budget` is a part of what eager saves, 0 for the least possible; `bytes` what is saved, without inputs, and `peak`
    the most that the backward's values take at once, saved ones among them; `longer` the time of what is made again, as
    a part of the step's without that, estimated from bytes moved and operations.
    """

    budget: float
    bytes: int
    peak: int
    longer: float


@dataclass(frozen=True, slots=True)
class Plan(Shown):
    """What `plan` found; prints as a table. Without gradients nothing is saved, and there are no `points`."""

    eager_bytes: int
    points: tuple[PlannedMemory, ...]

    def __str__(self) -> str:
        if not self.points:
            return "nothing is saved: there is no gradient to be computed"
        rows = [("memory", "saved bytes", "of eager's", "peak of backward", "longer by, estimated")]
        rows += [
            (
                f"{point.budget:g}" if point.budget else "least",
                f"{point.bytes:,}",
                f"{point.bytes / (self.eager_bytes or 1):.2f}",
                f"{point.peak:,}",
                f"{point.longer:.1%}",
            )
            for point in self.points
        ]
        return aligned(rows, str.rjust)

    __repr__ = __str__


def plan(function: Any, /, *args: Any, **kwargs: Any) -> Plan:
    """The curve of bytes by time for `memory=` in `sg.jit(function)(*args, **kwargs)`, without running the function.

    As with `explain`, it runs on fakes of the arguments, and a jitted function's options hold, but `memory`.
    """
    compiler = compiler_for(function)
    selection = replace(undecided(compiler.selection, []), memory="eager")
    entry = compiler.examined(selection, args, kwargs)
    if isinstance(entry, Fallback):
        raise InvalidInput(f"there is no plan of what is not compiled as a whole: {entry}")
    if entry.bridge is None:
        return Plan(0, ())
    training = entry.bridge.training
    joint, overwritten = training.joint, training.parts.prices.overwritten
    fuses = bool(selection.fusion)
    eager = partition(joint, overwritten).saved_bytes
    wanted = fastest(joint, overwritten, fuses=fuses)

    def point(budget: float) -> PlannedMemory:
        parts = within_budget(wanted, joint, overwritten, int(budget * eager), fuses=fuses)
        longer = extra(joint, parts, fuses=fuses)
        return PlannedMemory(budget, parts.saved_bytes, _peak(parts), longer)

    return Plan(eager, tuple(map(point, (*_PARTS, 0.0))))


def _peak(parts: Partitioned) -> int:
    alive = {proxy.name for proxy in parts.forward.inputs} - parts.prices.overwritten
    return peak(parts.backward, alive)
