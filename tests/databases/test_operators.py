"""Every operator of PyTorch's database is eager's to the bit, or refused for a reason that is written down."""

from __future__ import annotations

import pytest

from tests.databases.operators import MODES, examine_mode, operators
from tests.databases.refused import INEXACT_OPERATORS, REFUSED_OPERATORS
from tests.databases.report import applies, eighth, unexpected
from tests.databases.verdict import Outcome, jit_torch


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if eighth(name) else []) for name in operators()]
)
def test_operator(name: str, mode: str) -> None:
    verdicts = examine_mode(name, mode, jit_torch)
    faults = unexpected(verdicts, applies(REFUSED_OPERATORS.get(name), mode))
    assert not faults, "\n".join(faults)
    if all(verdict.outcome is Outcome.SKIPPED for verdict in verdicts):
        pytest.skip(f"eager supports none of its samples: {verdicts[0].detail}" if verdicts else "has no samples")


def test_exceptions_name_operators_of_the_database() -> None:
    assert REFUSED_OPERATORS.keys() | INEXACT_OPERATORS.keys() <= operators().keys()
