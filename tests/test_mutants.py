"""The faults that `scripts.mutants` puts into the source, and the test run in which every capture is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import switchgear
from scripts.mutants import ROOT, SOURCES, candidates, chosen, switched

TEXT = '''from __future__ import annotations
LIMIT = 3


def judge(values, most=2):
    """A docstring."""
    seen = []
    for value in values:
        if value is None or not value:
            continue
        seen.append(f"{value + 1}")
    assert len(seen) < 9
    return seen[1] if len(seen) == most else ""
'''

#: Kind, text before and after, and what `judge([0, 5, 6])` gives then, "6" or "7" without.
MUTANTS = {
    ("operand", "value is None or not value", "(not value)", "7"),
    ("operand", "value is None or not value", "(value is None)", ""),
    ("comparison", "value is None", "(value) is not (None)", ""),
    ("not", "not value", "value", ""),
    ("statement", "continue", None, ""),
    ("statement", 'seen.append(f"{value + 1}")', None, ""),
    ("return", 'return seen[1] if len(seen) == most else ""', "return None", None),
    ("comparison", "len(seen) == most", "(len(seen)) != (most)", ""),
    ("constant", "1", "2", IndexError),
}


def judged(text: str, active: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    switch = SimpleNamespace(on=lambda number: number == active)
    monkeypatch.setattr(switchgear, "mutation_switch", switch, raising=False)
    monkeypatch.setitem(sys.modules, "switchgear.mutation_switch", switch)
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    try:
        return namespace["judge"]([0, 5, 6])
    except IndexError:
        return IndexError


def test_mutants_of_a_text() -> None:
    found = {(one.kind, one.before, one.after) for one in candidates("file.py", TEXT)}
    assert found == {mutant[:3] for mutant in MUTANTS}


def test_each_mutant_is_off_until_it_is_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {mutant[:3]: mutant[3] for mutant in MUTANTS}
    for one in candidates("file.py", TEXT):
        text = switched("file.py", TEXT, [one])
        assert text.count("\n") == TEXT.count("\n")
        assert judged(text, -1, monkeypatch) == "7"
        assert judged(text, 0, monkeypatch) == expected[one.kind, one.before, one.after], one


def test_files_with_all_their_mutants_are_python_with_the_lines_of_before() -> None:
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for source in SOURCES
        for path in sorted((ROOT / source).rglob("*.py"))[::12]
    }
    mutants = chosen(texts, sys.maxsize, seed=1)
    assert len(mutants) == len({(one.file, one.line) for one in mutants}) > 100
    for file, text in texts.items():
        changed = switched(file, text, mutants)
        compile(changed, file, "exec")
        assert changed.count("\n") == text.count("\n")


def test_a_seed_chooses_the_same_mutants() -> None:
    texts = {"file.py": TEXT}
    assert chosen(texts, 4, seed=2) == chosen(texts, 4, seed=2) != chosen(texts, 4, seed=3)


TESTS = """
import warnings, torch, switchgear as sg

def call(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jitted = sg.jit(function, executors=["torch"], fallback="eager")
        jitted(torch.ones(2))
    return sg.cache_info(jitted)

def test_notices():
    assert call(torch.sin).entries == 1

def test_does_not_notice():
    call(torch.sin)

def test_is_refused_anyway():
    assert call(lambda x: x if x.sum().item() else x * 2).fallbacks == 1

def test_calls_nothing():
    pass
"""


def test_a_test_that_does_not_notice_that_nothing_is_compiled_fails(tmp_path: Path) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.refusing", "-p", "no:cacheprovider"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [*command, f"--rootdir={tmp_path}", f"--config-file={os.devnull}", str(file)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert re.findall(r"FAILED \S+::(\w+)", result.stdout) == ["test_does_not_notice"], result.stdout
    assert "1 failed, 3 passed" in result.stdout
