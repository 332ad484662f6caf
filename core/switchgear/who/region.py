"""Regions as plugins see them: calls that may run as one, and who is to run them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from switchgear.capture.sizes import map_numbers
from switchgear.ir.proxy import TensorProxy, changed_proxy, hint_of
from switchgear.ir.trace import Trace
from switchgear.showing import Shown, counted, shortened
from switchgear.who.executor import FusionExecutor


@dataclass(frozen=True, slots=True, eq=False)
class Region(Shown):
    """Calls that may run as one.

    `trace` is what they compute, `whole` the same with the composites that executors take whole in the place of their
    parts. `candidates` are the fusion executors that take all of it, in the order asked. `numbers` are the values of
    the trace's own numbers where it is called: symbolic ones.
    """

    trace: Trace
    whole: Trace
    candidates: tuple[FusionExecutor, ...]
    numbers: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join([item.symbol.name for item in self.trace.bound_symbols])
        takers = ", ".join(executor.name for executor in self.candidates) or "nobody"
        text = f"<Region of {counted(len(self.trace.bound_symbols), 'operator')} for {takers}: {names}>"
        return shortened(text)

    @property
    def sizes(self) -> list[int]:
        """The region's numbers in the call at hand, for estimates."""
        return [hint_of(number) for number in self.numbers]

    @property
    def layouts(self) -> list[TensorProxy]:
        """The region's inputs as they are laid out in the call at hand, for estimates."""
        layouts = (
            (proxy, map_numbers(hint_of, (proxy.shape, proxy.stride)))
            for proxy in self.trace.inputs
        )
        return [
            changed_proxy(proxy, shape=shape, stride=stride) for proxy, (shape, stride) in layouts
        ]


@dataclass(frozen=True, slots=True, eq=False)
class RegionChoice:
    """Who runs a region: one of its candidates, or None for those who run its operators one by one; and why.

    `gain` are the seconds that a call is shorter for it than with its operators, if they are known. What does not
    `last` is not remembered for other processes.
    """

    executor: FusionExecutor | None
    reason: str = ""
    gain: float = 0.0
    lasts: bool = True
