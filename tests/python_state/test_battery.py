"""What compiled calls read from Python is as it is now, and what they write there is written in every call."""

from __future__ import annotations

import pytest

from tests.python_state.cases import CASES
from tests.python_state.running import examine


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    finding = examine(CASES[name])
    assert finding.is_good, f"{finding.outcome.value}: {finding.detail}"


def test_most_cases_are_compiled() -> None:
    assert len(CASES) >= 130
    marked = [case for case in CASES.values() if case.falls_back]
    assert len(marked) <= len(CASES) / 10, [case.name for case in marked]
