"""The plugin of pytest: the suite has one test for each thing that a plugin registers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from switchgear_tools import pytest_plugin


def metafunc(plugin: str | None, *fixtures: str) -> Any:
    config = mock.Mock(getoption={"switchgear_plugin": plugin}.__getitem__)
    return mock.Mock(fixturenames=[*fixtures], config=config, parametrize=mock.Mock())


def test_the_suite_has_a_test_for_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [("implementation of torch.sin", print), ("grad rule of torch.cos", repr)]
    monkeypatch.setattr("switchgear_tools.testing.checks.plugin_checks", {"mine": checks}.__getitem__)
    own = metafunc("mine", "switchgear_check")
    pytest_plugin.pytest_generate_tests(own)
    own.parametrize.assert_called_once_with("switchgear_check", [print, repr], ids=[label for label, _ in checks])
    other = metafunc("mine", "tmp_path")
    pytest_plugin.pytest_generate_tests(other)
    other.parametrize.assert_not_called()
    pytest_plugin.pytest_generate_tests(metafunc(None))
    with pytest.raises(pytest.UsageError, match="--switchgear-plugin NAME"):
        pytest_plugin.pytest_generate_tests(metafunc(None, "switchgear_check"))


def test_the_option_alone_collects_the_suite(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("def test_mine(): pass\n")
    for options, said in (([], "1 passed"), (["--switchgear-plugin", "nobody"], "no plugin called 'nobody'")):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert said in done.stdout
