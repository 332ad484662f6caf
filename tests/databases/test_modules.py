"""Every module of PyTorch's database is eager's to the bit, in train and eval mode, or refused for a stated reason."""

from __future__ import annotations

import pytest

from tests.databases.modules import MODES, examine_mode, modules
from tests.databases.refused import INEXACT_MODULES, REFUSED_MODULES
from tests.databases.report import applies, eighth, unexpected
from tests.databases.verdict import Outcome, jit_torch


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if eighth(name) else []) for name in modules()]
)
def test_module(name: str, mode: str) -> None:
    verdicts = examine_mode(name, mode, jit_torch)
    faults = unexpected(verdicts, applies(REFUSED_MODULES.get(name), mode))
    assert not faults, "\n".join(faults)
    if all(verdict.outcome is Outcome.SKIPPED for verdict in verdicts):
        pytest.skip(f"eager supports none of its samples: {verdicts[0].detail}" if verdicts else "has no samples")


def test_exceptions_name_modules_of_the_database() -> None:
    assert REFUSED_MODULES.keys() | INEXACT_MODULES.keys() <= modules().keys()
