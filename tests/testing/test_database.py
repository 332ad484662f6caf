"""The kit has nothing against PyTorch's own operators, as a plugin's implementations and rules; all: `database.py`."""

from __future__ import annotations

import pytest

from tests.databases.verdict import Outcome
from tests.testing.database import MODES, examine_mode, targets
from tests.under_test import part


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [name for name in targets() if part(name, 64) == 0])
def test_pytorchs_own(name: str, mode: str) -> None:
    verdict = examine_mode(name, mode)
    if verdict.outcome is Outcome.SKIPPED:
        pytest.skip(verdict.detail)
    assert verdict.outcome is Outcome.EQUAL, verdict.detail
