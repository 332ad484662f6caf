"""A few entries of the suites on the Inductor executor; `make test-inductor` runs more of them."""

from __future__ import annotations

import pytest

from switchgear_inductor import InductorExecutor
from tests.databases import modules, operators
from tests.databases.refused import REFUSED_MODULES, REFUSED_OPERATORS
from tests.databases.report import applies, unexpected
from tests.fuzz.__main__ import summary
from tests.fuzz.processes import over_processes
from tests.fuzz.search import examine
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
    """What differs from eager differs on the torch executor too.

    In a process of its own, as hypothesis draws constants from whatever modules are imported.
    """
    exact, fused = UnderTest(), UnderTest(("inductor", "torch"))
    found = over_processes(examine, [(SEED, PROGRAMS, exact), (SEED, PROGRAMS, fused)], 1)
    findings = {arguments[2]: result for arguments, result in found}
    assert all(findings.values()), "the process died or hung"
    different = [{one.text: one for one in findings[jit] or () if one.text} for jit in (exact, fused)]
    assert different[1].keys() <= different[0].keys(), [one.verdict.detail for one in different[1].values()]
    with_regions = [one for one in findings[fused] or () if one.verdict.fused]
    assert len(with_regions) > PROGRAMS // 4, summary(findings[fused] or ())
