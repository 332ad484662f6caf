"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest

import switchgear as sg
from switchgear.cli import main
from switchgear.who import plugins
from switchgear.who.plugins import load
from tests.core.made_up import SIN, Site, executor_plugin, rules_plugin


@pytest.fixture(autouse=True)
def made_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load(
        [
            site.add("b", "print('hello')\n" + executor_plugin("b", SIN)),
            site.add("a", executor_plugin("a", SIN, options="priority=-1")),
            site.add("rules", rules_plugin("rules")),
        ]
    )
    monkeypatch.setattr("switchgear.cli.installed", lambda: found)
    monkeypatch.setattr("switchgear.cli.plugin_report", lambda: found.report)


def test_operators_in_the_order_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "operator   implemented by  differentiated by",
        "torch.sin  b, a            b, a, rules",
    ]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["sin"], 0), (["cos"], 1), (["--executor", "rules"], 0), (["--executor", "nobody"], 1)],
)
def test_operators_by_name_and_owner(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators", *arguments]) == status
    assert bool(capsys.readouterr().err) == bool(status)


def test_operators_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "operator": "torch.sin",
        "implemented_by": ["b", "a"],
        "differentiated_by": ["b", "a", "rules"],
    }


def test_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a      switchgear-a      1.0  loaded  executors: a",
        "b      switchgear-b      1.0  loaded  executors: b  1 notes on its import (-v)",
        "rules  switchgear-rules  1.0  loaded",
    ]
    assert main(["plugins", "-v"]) == 0
    assert "b: its import printed: hello" in capsys.readouterr().out
    assert main(["plugins", "--json"]) == 0
    assert [one["notes"] for one in json.loads(capsys.readouterr().out)] == [[], ["its import printed: hello"], []]


def test_version_and_console_script() -> None:
    printed = subprocess.run([sys.executable, "-m", "switchgear", "--version"], capture_output=True, text=True)
    assert printed.stdout.strip() == sg.__version__ == version("switchgear")
    (script,) = entry_points(group="console_scripts", name="switchgear")
    assert script.load() is main


def test_plugins_are_those_of_the_process() -> None:
    assert plugins.installed().report
