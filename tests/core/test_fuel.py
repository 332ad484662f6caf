"""Fuel: how many regions may be fused."""

from __future__ import annotations

from typing import Any

import pytest

import switchgear as sg
from switchgear.errors import InvalidInput
from tests.in_turn import in_turn


@in_turn(limit=[1.5, True, "1", -1, [1]])
def test_a_limit_is_a_number_of_regions(limit: Any) -> None:
    with pytest.raises(InvalidInput, match="fuel is a number of regions, 0 or more, not "):
        sg.Fuel(limit)


@in_turn(limit__left=[(None, None), (0, -1), (3, 2)])
def test_each_region_uses_one(limit: int | None, left: int | None) -> None:
    fuel: Any = sg.Fuel(limit)
    assert (fuel.left, fuel.regions, repr(fuel)) == (limit, [], f"<Fuel: 0 regions fused, limit {limit}>")
    fuel.regions.append("a region")
    assert (fuel.left, repr(fuel)) == (left, f"<Fuel: 1 regions fused, limit {limit}>")
