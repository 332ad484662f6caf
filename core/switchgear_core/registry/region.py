"""Regions as plugins see them: calls that may run together, and the choice of an executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from switchgear_core.ir.proxy import TensorProxy, changed_proxy, hint_of
from switchgear_core.ir.trace import Trace
from switchgear_core.record.sizes import map_numbers
from switchgear_core.registry.executor import FusionExecutor
from switchgear_core.showing import Shown, counted, shortened


@dataclass(frozen=True, slots=True, eq=False)
class Region(Shown):
    """Calls that may run together.

    Attributes:
        trace: the operators of the region.
        composites: the same calls, with the composites that executors run as a single call.
        candidates: the fusion executors that support all calls, in the order of asking.
        numbers: values of the trace's numbers at the call; symbolic numbers.
    """

    trace: Trace
    composites: Trace
    candidates: tuple[FusionExecutor, ...]
    numbers: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join([item.symbol.name for item in self.trace.bound_symbols])
        takers = ", ".join(executor.name for executor in self.candidates) or "nobody"
        text = f"<Region of {counted(len(self.trace.bound_symbols), 'operator')} for {takers}: {names}>"
        return shortened(text)

    @property
    def sizes(self) -> list[int]:
        """Return the region's numbers in the current call, for estimates."""
        return [hint_of(number) for number in self.numbers]

    @property
    def layouts(self) -> list[TensorProxy]:
        """Return the region's inputs with their layouts in the current call, for estimates."""
        layouts = (
            (proxy, map_numbers(hint_of, (proxy.shape, proxy.stride)))
            for proxy in self.trace.inputs
        )
        return [
            changed_proxy(proxy, shape=shape, stride=stride) for proxy, (shape, stride) in layouts
        ]


@dataclass(frozen=True, slots=True, eq=False)
class RegionChoice:
    """Choice of the executor of a region, with the reason.

    Attributes:
        executor: one of the candidates; None runs the operators separately.
        gain: seconds by which a call is shorter than with its operators; 0 if unknown.
        reason: the reason of the choice.
        lasts: whether other processes may use the choice.
    """

    executor: FusionExecutor | None
    reason: str = ""
    gain: float = 0.0
    lasts: bool = True
