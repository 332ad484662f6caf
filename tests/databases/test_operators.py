"""Every operator of PyTorch's database is eager's to the bit, or refused for a reason that is written down."""

from __future__ import annotations

import pytest

from tests.databases.operators import examine_mode, modes_of, operators
from tests.databases.refused import INEXACT_OPERATORS, REFUSED_OPERATORS, UNSUPPORTED_BY_EAGER
from tests.databases.report import applies, unexpected
from tests.databases.verdict import Outcome
from tests.under_test import EXECUTORS, UnderTest, part

pytestmark = pytest.mark.beside_eager

CASES = [
    pytest.param(name, mode, marks=[pytest.mark.slow] if part(name, 8) else [])
    for name in operators()
    for mode in modes_of(name)
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_operator(name: str, mode: str) -> None:
    verdicts = examine_mode(name, mode, UnderTest(tuple(EXECUTORS)))
    faults = unexpected(verdicts, applies(REFUSED_OPERATORS.get(name), mode))
    assert not faults, "\n".join(faults)
    nothing_called = all(verdict.outcome is Outcome.SKIPPED for verdict in verdicts)
    assert nothing_called == (name in UNSUPPORTED_BY_EAGER), verdicts


def test_exceptions_name_operators_of_the_database() -> None:
    assert REFUSED_OPERATORS.keys() | INEXACT_OPERATORS.keys() <= operators().keys()
