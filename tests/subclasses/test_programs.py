"""Random programs on tensors of subclasses are as in eager."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.subclasses.fuzz import judge


@pytest.mark.filterwarnings("ignore")
def test_random_programs() -> None:
    outcomes = [judge(seed) for seed in range(60)]
    assert not [detail for outcome, detail in outcomes if outcome == "different"]
    counts = Counter(outcome for outcome, _ in outcomes)
    assert counts["compiled"] > counts["fell back"]
