"""`pytest -p switchgear.testing.pytest_plugin --switchgear-plugin NAME --pyargs switchgear.testing.suite`."""

from __future__ import annotations

import pytest

from switchgear.testing.checks import plugin_checks


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin that `suite` tests."""
    parser.addoption(
        "--switchgear-plugin",
        metavar="NAME",
        help="test the operators and rules that this installed plugin registers",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each check."""
    if "switchgear_check" in metafunc.fixturenames:
        name = metafunc.config.getoption("switchgear_plugin")
        if name is None:
            raise pytest.UsageError("say which plugin is to be tested: --switchgear-plugin NAME")
        checks = [*plugin_checks(name)]
        metafunc.parametrize(
            "switchgear_check", [check for _, check in checks], ids=[label for label, _ in checks]
        )
