"""Says how many of the behaviours are compiled, and how many fall back: `pytest tests/aot_behaviours`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from switchgear_runtime.fallback import Fallback, Fallbacks

_PROPERTY = "behaviour falls back"


@pytest.fixture(autouse=True)
def counted_behaviour(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Notes whether any call of a jitted function falls back in a test that makes one."""
    jitted: list[Fallbacks] = []
    reasons: list[Fallback] = []
    begin, count = Fallbacks.__init__, Fallbacks.count

    def beginning(self: Fallbacks, *args: Any) -> None:
        begin(self, *args)
        jitted.append(self)

    def counting(self: Fallbacks, fallback: Fallback, *args: Any) -> None:
        reasons.append(fallback)
        count(self, fallback, *args)

    monkeypatch.setattr(Fallbacks, "__init__", beginning)
    monkeypatch.setattr(Fallbacks, "count", counting)
    yield
    if jitted and request.path.name != "test_observation.py":
        request.node.user_properties.append((_PROPERTY, bool(reasons)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for report in terminalreporter.getreports("") if report.when == "teardown"]
    answers = [dict(report.user_properties).get(_PROPERTY) for report in reports]
    tests = len(answers) - answers.count(None)
    if tests:
        compiled = answers.count(False)
        terminalreporter.write_line(
            f"AOT behaviours compiled without a fallback: {compiled} of {tests}, {compiled / tests:.1%}"
        )
