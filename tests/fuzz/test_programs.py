"""A hundred random programs, others in each run, equal to eager."""

from __future__ import annotations

import os
import secrets

import pytest

from tests.fuzz.__main__ import summary
from tests.fuzz.compare import EXCEPTIONS, Outcome
from tests.fuzz.search import examine, shrink

PROGRAMS = 100
#: Set it to the seed that a failure names, to draw the same programs again.
SEED_VARIABLE = "SWITCHGEAR_FUZZ_SEED"


def test_random_programs(record_property: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHGEAR_VERIFY", "1")
    seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbelow(2**31))
    record_property("fuzz_seed", seed)  # type: ignore[operator]
    print(f"{SEED_VARIABLE}={seed}")
    findings = examine(seed, PROGRAMS)
    print(summary(findings))
    different = [finding for finding in findings if finding.verdict.outcome is Outcome.DIFFERENT]
    if different:
        first = different[0]
        first = shrink(seed, PROGRAMS, first.verdict.kind) or first
        pytest.fail(
            f"{len(different)} of {len(findings)} programs differ from eager; again with {SEED_VARIABLE}={seed}. "
            f"One of them, shrunk:\n\n{first.verdict.detail}\n\n{first.text}"
        )


def test_enough_programs_are_compared() -> None:
    """A fuzzer whose programs all do nothing, all raise or are all refused finds nothing, and says so here."""
    findings = examine(0, 60, lambda function: function)
    assert all(finding.verdict.outcome in (Outcome.EQUAL, Outcome.BOTH_RAISE) for finding in findings)
    assert sum(finding.verdict.outcome is Outcome.EQUAL for finding in findings) > 45
    assert sum(finding.steps for finding in findings) / len(findings) > 4


def test_no_operator_is_excepted() -> None:
    assert not EXCEPTIONS
