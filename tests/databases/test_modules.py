"""Every module of PyTorch's database is eager's to the bit, in train and eval mode, or refused for a stated reason."""

from __future__ import annotations

import pytest

from tests.databases.modules import MODES, examine_mode, modules
from tests.databases.refused import INEXACT_MODULES, REFUSED_MODULES
from tests.databases.report import applies, unexpected
from tests.databases.verdict import Outcome
from tests.under_test import EXECUTORS, UnderTest, part

pytestmark = pytest.mark.beside_eager

CASES = [
    pytest.param(name, mode, marks=[pytest.mark.slow] if part(name, 8) else []) for name in modules() for mode in MODES
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_module(name: str, mode: str) -> None:
    verdicts = examine_mode(name, mode, UnderTest(tuple(EXECUTORS)))
    faults = unexpected(verdicts, applies(REFUSED_MODULES.get(name), mode))
    assert not faults, "\n".join(faults)
    assert any(verdict.outcome is not Outcome.SKIPPED for verdict in verdicts), verdicts


def test_exceptions_name_modules_of_the_database() -> None:
    assert REFUSED_MODULES.keys() | INEXACT_MODULES.keys() <= modules().keys()
