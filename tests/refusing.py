"""Do tests notice that nothing is compiled? `pytest -p tests.refusing tests/aot_behaviours tests/python_state`.

Every capture that succeeds is refused nevertheless. A test in which that happens has to fail, because it says that
something is compiled. Here such a failure counts as passed, and a test that passes as failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from switchgear import errors
from switchgear_frontend import session

_REFUSED: list[object] = []


def pytest_collection_finish() -> None:
    """Replace what captures, wherever it is imported by now."""
    capture = session.capture

    def refuse(*args: Any, **kwargs: Any) -> Any:
        capture(*args, **kwargs)  # raises the refusals that there are anyway
        _REFUSED.append(args[0])
        raise errors.Unsupported("tests.refusing: nothing is captured")

    for name, module in list(sys.modules.items()):
        if name.startswith("switchgear") and getattr(module, "capture", None) is capture:
            module.capture = refuse  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Turn the outcome of a test round in which a capture was refused."""
    report: Any = yield
    if call.when == "setup":
        _REFUSED.clear()
    if call.when == "call" and _REFUSED and report.outcome != "skipped":
        passed = report.outcome == "passed"
        report.outcome = "failed" if passed else "passed"
        report.longrepr = "it passes although nothing that it compiles is captured" if passed else None
    return report  # type: ignore[no-any-return]
