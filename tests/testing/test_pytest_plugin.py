"""The plugin of pytest: the suite has one test for each thing that a plugin registers."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from switchgear.testing import pytest_plugin


def metafunc(plugin: str | None, *fixtures: str) -> Any:
    config = mock.Mock(getoption={"switchgear_plugin": plugin}.__getitem__)
    return mock.Mock(fixturenames=[*fixtures], config=config, parametrize=mock.Mock())


def test_the_suite_has_a_test_for_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [("implementation of torch.sin", print), ("grad rule of torch.cos", repr)]
    monkeypatch.setattr("switchgear.testing.pytest_plugin.plugin_checks", {"mine": checks}.__getitem__)
    own = metafunc("mine", "switchgear_check")
    pytest_plugin.pytest_generate_tests(own)
    own.parametrize.assert_called_once_with("switchgear_check", [print, repr], ids=[label for label, _ in checks])
    other = metafunc("mine", "tmp_path")
    pytest_plugin.pytest_generate_tests(other)
    other.parametrize.assert_not_called()
    pytest_plugin.pytest_generate_tests(metafunc(None))
    with pytest.raises(pytest.UsageError, match="--switchgear-plugin NAME"):
        pytest_plugin.pytest_generate_tests(metafunc(None, "switchgear_check"))
