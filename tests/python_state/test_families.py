"""A few random programs of each family; `python -m tests.python_state --programs 3000` runs more."""

from __future__ import annotations

import pytest

from tests.python_state.families.program import FAMILIES
from tests.python_state.families.running import examine

PER_FAMILY = 3


@pytest.mark.parametrize("name", FAMILIES)
def test_programs_of_a_family_are_as_in_eager(name: str) -> None:
    endings = [examine(name, f"0:{name}:{number}") for number in range(PER_FAMILY)]
    wrong = [ending for ending in endings if not ending.is_right]
    assert not wrong, wrong[0].detail


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("classes_whose_methods_raise", 16), ("alike_in_containers", 23)),
        *(("deques_by_their_lengths", 26), ("alike_put_into_a_container", 32)),
    ],
)
def test_programs_that_were_wrong_once(name: str, number: int) -> None:
    ending = examine(f"alike.{name}", f"4711:alike.{name}:{number}")
    assert ending.is_right, ending.detail
