"""A few entries of the suites on the Inductor executor; `make test-inductor` runs more of them."""

from __future__ import annotations

import pytest

from switchgear_inductor import InductorExecutor
from tests.databases import modules, operators
from tests.databases.refused import REFUSED_MODULES, REFUSED_OPERATORS
from tests.databases.report import applies, unexpected
from tests.fuzz.__main__ import summary
from tests.fuzz.compare import Outcome
from tests.fuzz.processes import over_processes
from tests.fuzz.search import Setup, examine
from tests.under_test import UnderTest

pytestmark = pytest.mark.skipif(
    InductorExecutor().unavailable() is not None, reason="no C++ compiler here, which Inductor needs"
)

PROGRAMS, SEED = 5, 100


def inductor() -> UnderTest:
    return UnderTest((InductorExecutor(progress=False), "torch"))


@pytest.mark.parametrize(("name", "mode"), [("logaddexp", "gradient")])
def test_operators(name: str, mode: str) -> None:
    verdicts = operators.examine_mode(name, mode, inductor())
    faults = unexpected(verdicts, applies(REFUSED_OPERATORS.get(name), mode))
    assert not faults, "\n".join(faults)
    assert sum(verdict.fused for verdict in verdicts)


@pytest.mark.parametrize(("name", "mode"), [("nn.SmoothL1Loss", "eval gradient")])
def test_modules(name: str, mode: str) -> None:
    verdicts = modules.examine_mode(name, mode, inductor())
    faults = unexpected(verdicts, applies(REFUSED_MODULES.get(name), mode))
    assert not faults, "\n".join(faults)
    assert sum(verdict.fused for verdict in verdicts)


@pytest.mark.discovery
def test_random_programs() -> None:
    """What differs from eager differs on the torch executor too."""
    programs = tuple(f"{SEED}:{number}" for number in range(PROGRAMS))
    setups = [Setup(UnderTest()), Setup(UnderTest(("inductor", "torch")))]
    results = {setup: findings for (_, setup), findings in over_processes(examine, [(programs, s) for s in setups], 1)}
    assert all(results.values()), "the process died or hung"
    exact, fused = (results[setup] or [] for setup in setups)
    different = [
        {one.seed for one in findings if one.verdict.outcome is Outcome.DIFFERENT} for findings in (exact, fused)
    ]
    assert different[1] <= different[0], [one.verdict.detail for one in fused]
    assert any(one.verdict.fused for one in fused), summary(fused)
