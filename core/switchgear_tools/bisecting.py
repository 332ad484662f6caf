"""Bisecting: find the region that makes a result differ."""

from __future__ import annotations

from collections.abc import Callable

from switchgear_core.errors import SwitchgearError
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.registry.fuel import Fuel


def bisect(check: Callable[[Fuel], object]) -> BoundSymbol:
    """Find the region without which `check` passes, and with which `check` fails.

    Args:
        check: passes its fuel to `sg.jit` and compares. A failing check raises or returns False. Every call of `check`
            has to do the same.

    Returns:
        The region.

    Raises:
        SwitchgearError: `check` passes with all regions fused, or fails with none.
    """
    fuel = Fuel()
    if _failure(check, fuel) is None:
        raise SwitchgearError(
            f"the check passes with all {len(fuel.regions)} regions fused: there is nothing to find"
        )
    without = _failure(check, Fuel(0))
    if without is not None:
        raise SwitchgearError(
            f"the check fails without any region too, so fusion is not at fault: {without!r}"
        )
    passing, failing = 0, fuel
    while len(failing.regions) - passing > 1:
        tried = Fuel((passing + len(failing.regions)) // 2)
        if _failure(check, tried) is None:
            passing = tried.limit or 0
        else:
            failing = tried
    return failing.regions[-1]


def _failure(check: Callable[[Fuel], object], fuel: Fuel) -> Exception | None:
    try:
        return AssertionError("it returned False") if check(fuel) is False else None
    except Exception as error:
        return error


def described(region: BoundSymbol) -> str:
    """Return a text that names a region, its operators and the user's lines of these operators."""
    owner = region.implementation.owner if region.implementation else ""
    lines = [f"{region.symbol.name}, compiled by {owner}:"]
    return "\n".join(
        [
            *lines,
            *(f"  {part.symbol.name}  {part.source or ''}".rstrip() for part in region.subsymbols),
        ]
    )
