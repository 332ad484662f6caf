"""Predict saved bytes and costs of each memory budget, on fakes; nothing runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from switchgear_core.errors import InvalidInput
from switchgear_core.grad.partition import Partitioned, partition
from switchgear_core.ir.symbol import RECOMPUTED
from switchgear_core.registry.savings import AS_EAGER
from switchgear_core.showing import Shown
from switchgear_runtime.fallback import Fallback
from switchgear_tools.before_call import compiler_for, undecided
from switchgear_tools.columns import table
from switchgear_tools.entries import bytes_in_eager
from switchgear_tools.lifetimes import peak

#: The planned budgets, next to the smallest possible.
_PARTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


@dataclass(frozen=True, slots=True)
class PlannedMemory:
    """Costs of a budget.

    Attributes:
        budget: fraction of eager's saved bytes; 0 is the smallest possible budget.
        bytes: saved bytes, without inputs.
        peak: peak of the values of the backward, in bytes, saved ones included.
        longer: estimated time of the recomputation, as a fraction of a step's time without it.
    """

    budget: float
    bytes: int
    peak: int
    longer: float


@dataclass(frozen=True, slots=True)
class Plan(Shown):
    """Result of `plan`; prints as a table. Without gradients nothing is saved, and `points` is empty."""

    eager_bytes: int
    points: tuple[PlannedMemory, ...]

    def __str__(self) -> str:
        if not self.points:
            return "nothing is saved: there is no gradient to be computed"
        header = ("memory", "saved bytes", "of eager's", "peak of backward", "longer by, estimated")
        rows = [
            (
                f"{point.budget:g}" if point.budget else "least",
                f"{point.bytes:,}",
                f"{point.bytes / (self.eager_bytes or 1):.2f}",
                f"{point.peak:,}",
                f"{point.longer:.1%}",
            )
            for point in self.points
        ]
        return table(header, rows, range(5))

    __repr__ = __str__


def plan(function: Any, /, *args: Any, **kwargs: Any) -> Plan:
    """Predict the costs of each memory budget, without running the function.

    Args:
        function: the result of `sg.jit`, whose options hold except `memory`; or another function or module.
        args: arguments of a call. The function runs on fakes of the arguments.
        kwargs: keyword arguments of the call.

    Returns:
        For each budget the saved bytes, the peak in bytes, and the estimated time.

    Raises:
        InvalidInput: the call falls back, so there is no plan; or the plugin of budgets is not installed.
        RuleError: a plugin raises; likewise other errors of plugins.
    """
    try:
        from switchgear_memory import ByOption, extra  # noqa: PLC0415 - a plugin, which may be missing
    except ImportError as error:
        raise InvalidInput("sg.plan needs switchgear_memory: pip install switchgear") from error
    compiler = compiler_for(function)
    selection = replace(undecided(compiler.selection, []), savings=AS_EAGER)
    entry = compiler.examined(selection, args, kwargs)
    if isinstance(entry, Fallback):
        raise InvalidInput(f"there is no plan of a call that is not compiled as a whole: {entry}")
    if entry.bridge is None:
        return Plan(0, ())
    training = entry.bridge.training
    joint, overwritten = training.joint, training.parts.overwritten
    fuses = bool(selection.fusion)
    eager = bytes_in_eager(entry, selection)

    def point(budget: float) -> PlannedMemory:
        limit = ByOption(f"{int(budget * eager)}B", may_exceed=True)
        parts = partition(joint, overwritten, limit, fuses, lambda: eager)
        replay = [item for item in parts.backward.bound_symbols if RECOMPUTED in item.tags]
        longer = extra(joint.trace, replay, fuses)
        return PlannedMemory(budget, parts.saved_bytes, _peak(parts), longer)

    return Plan(eager, tuple(map(point, (*_PARTS, 0.0))))


def _peak(parts: Partitioned) -> int:
    alive = {proxy.name for proxy in parts.forward.inputs} - parts.overwritten
    return peak(parts.backward, alive)
