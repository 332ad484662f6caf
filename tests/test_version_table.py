"""The script that prints the table of versions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import version_table

TESTS = """
import pytest

def test_one(): pass
def test_two(): pass
@pytest.mark.skip(reason="so")
def test_three(): pass
{more}
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("7 passed, 2 skipped in 3.10s", {"passed": 7, "skipped": 2}),
        ("== 1 failed, 7 passed, 1 error in 63.10s (0:01:03) ==", {"failed": 1, "passed": 7, "errors": 1}),
        ("INTERNALERROR> 3 passed", {}),
    ],
)
def test_counts(line: str, found: dict[str, int]) -> None:
    assert version_table.counts(f"..F\n{line}\n") == found


@pytest.mark.parametrize(("more", "failed"), [("", 0), ("def test_four(): assert False", 1)])
def test_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, failed: int) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(TESTS.format(more=more))
    arguments = [sys.executable, "--", "-p", "no:cacheprovider", "-c", str(tmp_path / "none.ini"), str(file)]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    assert version_table.main(arguments) == failed
    printed = capsys.readouterr()
    cells = printed.out.splitlines()[2].split(" | ")
    assert cells[2:6] == ["2", str(failed), "0", "1"]
    assert ("test_four" in printed.err) == bool(failed)
