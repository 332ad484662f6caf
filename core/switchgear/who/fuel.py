"""Optimisation fuel: how many regions may be fused, to find the one that makes a result differ."""

from __future__ import annotations

from switchgear.errors import InvalidInput
from switchgear.ir.symbol import BoundSymbol


class Fuel:
    """What fusing regions burns: one unit each, in the order in which they are compiled; None is without end.

    One fuel may be shared by several jitted functions. `regions` are those fused so far.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidInput(f"fuel is a number of regions, 0 or more, not {limit!r}")
        self.limit = limit
        self.regions: list[BoundSymbol] = []

    def __repr__(self) -> str:
        return f"<Fuel: {len(self.regions)} regions fused, limit {self.limit}>"

    @property
    def left(self) -> int | None:
        """How many more regions may be fused."""
        return None if self.limit is None else self.limit - len(self.regions)
