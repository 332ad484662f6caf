"""Optimisation fuel: a limit on fused regions, to find the region that changes a result."""

from __future__ import annotations

from switchgear_core.errors import InvalidInput
from switchgear_core.ir.symbol import BoundSymbol


class Fuel:
    """Number of regions that may be fused; each region uses one unit, in the order of compilation.

    Several jitted functions may share one object; its `regions` are the regions fused so far.

    Args:
        limit: the number of regions; None is unlimited.
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
        """Return the number of regions that may still be fused; None is unlimited."""
        return None if self.limit is None else self.limit - len(self.regions)
