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
from tests.fuzz.search import examine
from tests.under_test import UnderTest

pytestmark = pytest.mark.skipif(
    InductorExecutor().unavailable() is not None, reason="no C++ compiler here, which Inductor needs"
)

PROGRAMS, SEED = 10, 3


def inductor() -> UnderTest:
    return UnderTest((InductorExecutor(progress=False), "torch"))


@pytest.mark.parametrize("name", ["nn.functional.gelu", "std_mean", "logaddexp"])
def test_operators(name: str) -> None:
    fused = 0
    for mode in operators.modes_of(name):
        verdicts = operators.examine_mode(name, mode, inductor())
        faults = unexpected(verdicts, applies(REFUSED_OPERATORS.get(name), mode))
        assert not faults, "\n".join(faults)
        fused += sum(verdict.fused for verdict in verdicts)
    assert fused


@pytest.mark.parametrize(("name", "mode"), [("nn.GroupNorm", "train gradient"), ("nn.SmoothL1Loss", "eval gradient")])
def test_modules(name: str, mode: str) -> None:
    verdicts = modules.examine_mode(name, mode, inductor())
    faults = unexpected(verdicts, applies(REFUSED_MODULES.get(name), mode))
    assert not faults, "\n".join(faults)
    assert sum(verdict.fused for verdict in verdicts)


@pytest.mark.discovery
def test_random_programs() -> None:
    """In a process of its own, as hypothesis draws constants from whatever modules are imported."""
    ((_, findings),) = over_processes(examine, [(SEED, PROGRAMS, UnderTest(("inductor", "torch")))], 1)
    assert findings is not None, "the process died or hung"
    different = [finding for finding in findings if finding.verdict.outcome is Outcome.DIFFERENT]
    assert not different, f"{different[0].verdict.detail}\n\n{different[0].text}"
    assert sum(bool(finding.verdict.fused) for finding in findings) > PROGRAMS // 4, summary(findings)
