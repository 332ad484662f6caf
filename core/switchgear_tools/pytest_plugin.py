"""The option `--switchgear-plugin` of pytest: an entry point that imports no PyTorch before the option is used."""

from __future__ import annotations

import importlib

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--switchgear-plugin",
        metavar="NAME",
        help="test the operators and rules that this installed plugin of Switchgear registers",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the suite if no files are named."""
    has_files = config.args_source is pytest.Config.ArgsSource.ARGS
    if config.getoption("switchgear_plugin") is not None and not has_files:
        config.args, config.option.pyargs = ["switchgear_tools.testing.suite"], True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with each check of the plugin."""
    if "switchgear_check" in metafunc.fixturenames:
        name = metafunc.config.getoption("switchgear_plugin")
        if name is None:
            raise pytest.UsageError("say which plugin is to be tested: --switchgear-plugin NAME")
        checks = [*importlib.import_module("switchgear_tools.testing.checks").plugin_checks(name)]
        functions, labels = [check for _, check in checks], [label for label, _ in checks]
        metafunc.parametrize("switchgear_check", functions, ids=labels)
