"""The command line."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import switchgear as sg
from switchgear_core.registry import plugins
from switchgear_core.registry.plugins import load
from switchgear_tools.cli import main
from switchgear_tools.columns import table
from switchgear_tools.commands import COMMANDS
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
    monkeypatch.setattr("switchgear_tools.commands.installed", lambda: found)
    for name in ("plugin_report", "tried_report"):
        monkeypatch.setattr(f"switchgear_tools.commands.{name}", lambda: found.report)


def test_operators_in_the_order_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["operator", "kind", "owner", "version", "function"]
    assert [line[:3] for line in lines[1:3]] == [["torch.sin", "implementation", owner] for owner in "ba"]
    assert [line[1:4] for line in lines[3:]] == [["grad", "rule", owner] for owner in ("b", "a", "rules")]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["sin"], 0), (["cos"], 1), (["--executor", "rules"], 0), (["--executor", "nobody"], 1)],
)
def test_operators_by_name_and_owner(arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators", *arguments]) == status
    assert bool(capsys.readouterr().err) == bool(status)


def test_operators_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["operators"]
    assert {row["operator"] for row in rows} == {"torch.sin"}
    assert [row["owner"] for row in rows if row["kind"] == "implementation"] == ["b", "a"]
    assert [row["owner"] for row in rows if row["kind"] == "grad rule"] == ["b", "a", "rules"]
    assert rows[0]["function"] == "fast_sin (made_up_switchgear_b_b:21)"


def test_who_implements_an_operator(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = SIN.replace("implementation(torch.sin)", "implementation(torch.sin, checker=lambda call: True)")
    absent = executor_plugin("absent", SIN).replace("sg.Executor(", "Absent(") + (
        "\nclass Absent(sg.Executor):\n    def unavailable(self):\n        return 'no device'\n"
    )
    found = load([site.add("absent", absent), site.add("checked", executor_plugin("checked", checked))])
    monkeypatch.setattr("switchgear_tools.commands.installed", lambda: found)
    assert main(["operators", "sin"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["operator", "kind", "owner", "version", "function", "checker", "unavailable"]
    assert lines[1].startswith("torch.sin  implementation  absent   1.0      fast_sin (made_up")
    assert lines[1].endswith("  no device")
    assert "<lambda> (made_up_switchgear_checked_checked:" in lines[2]
    assert lines[-1].startswith("torch.sin  grad rule       checked  1.0 ")


def test_only_what_is_needed_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["test"])
    assert capsys.readouterr().err.startswith("switchgear test: the following arguments are required: name\n")


MODEL = """
import torch

def loss(x, factor=2.0):
    return torch.sin(x * factor).sum()

def example():
    return torch.ones(3, requires_grad=True)

def made():
    return torch.ones(3) * 2

def named():
    return {"x": torch.ones(3), "factor": 3.0}

def prints(x):
    print(x)
    return x

module = torch.nn.Linear(3, 3)
number = 3
"""


@pytest.mark.parametrize("home", ["model.py", "a_model"])
@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["loss", "--inputs", "example"], 0, "executor  forward  backward\n"),
        (["loss", "--inputs", "example"], 0, "more: --details=operators  --details=gradients"),
        (["loss", "--inputs", "example", "--details", "gradients"], 0, "torch.sin: gradient by"),
        (["loss", "--inputs", "named", "--details", "operators"], 0, "torch.mul: execution by torch"),
        (["module", "--inputs", "example"], 0, "saved for the backward"),
        (["prints", "--inputs", "example"], 1, "would not be compiled: Unsupported: the function prints"),
        (["loss", "--inputs", "example", "--executors", "torch"], 0, "executors: torch"),
        (["loss", "--inputs", "example", "--executors", "tourch"], 1, "did you mean 'torch'"),
        (["los", "--inputs", "example"], 1, "has no los"),
        (["number"], 1, "is of type int, and cannot be called"),
        (["loss"], 1, "missing a required argument: 'x'; give --inputs"),
        (["module"], 1, "missing a required argument: 'input'; give --inputs"),
        (["made"], 0, "executors: "),
    ],
)
def test_explain(
    home: str,
    arguments: list[str],
    status: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("a_model.py").write_text(MODEL)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert main(["explain", f"{home}:{arguments[0]}", *arguments[1:]]) == status
    printed = capsys.readouterr()
    assert text in (printed.out or printed.err)
    if not printed.err:
        assert main(["explain", f"{home}:{arguments[0]}", *arguments[1:], "--json"]) == status
        assert bool(json.loads(capsys.readouterr().out)["fallback"]) == bool(status)
    monkeypatch.delitem(sys.modules, "a_model", raising=False)


def test_a_script_finds_the_modules_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/nearby.py").write_text("import torch\n\ndef net():\n    return torch.ones(2).sin()\n")
    (tmp_path / "project/main.py").write_text("from nearby import net\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert main(["explain", "project/main.py:net"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("place", ["no_such_module:f", "nowhere.py:f", "nothing"])
def test_explain_what_is_not_there(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", place]) == 1
    assert capsys.readouterr().err


def test_statuses_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "--help"])
    assert ended.value.code == 0
    assert "1  a fault" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["explain"])
    assert ended.value.code == 2


def test_a_column_that_is_empty_is_left_out() -> None:
    rows = [("a", "", "1"), ("bc", "", "23")]
    assert table(("name", "nothing", "n"), rows, [2]) == "name   n\na      1\nbc    23"


def test_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "plugin  distribution      version  status  executors  remarks",
        "a       switchgear-a      1.0      loaded  a",
        "b       switchgear-b      1.0      loaded  b          1 notes on its import (-v)",
        "rules   switchgear-rules  1.0      loaded",
    ]
    assert main(["plugins", "-v"]) == 0
    assert "b: its import printed: hello" in capsys.readouterr().out
    assert main(["plugins", "--json"]) == 0
    assert [one["notes"] for one in json.loads(capsys.readouterr().out)["plugins"]] == [
        [],
        ["its import printed: hello"],
        [],
    ]


def test_version_and_console_script() -> None:
    printed = subprocess.run([sys.executable, "-m", "switchgear", "--version"], capture_output=True, text=True)
    assert printed.stdout.strip() == sg.__version__ == version("switchgear-core")
    (script,) = entry_points(group="console_scripts", name="switchgear")
    assert script.load() is main


def test_plugins_are_those_of_the_process() -> None:
    assert plugins.installed().report


def test_help_and_mistakes_import_no_torch() -> None:
    code = (
        "import sys\nfrom switchgear_tools.cli import main\n"
        "for line in ('--help', 'explain --help', '--version', 'plugin'):\n"
        "    try: main(line.split())\n"
        "    except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'switchgear' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_command_has_examples_statuses_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        text = capsys.readouterr().out
        assert f"  switchgear {name}" in text
        assert "exit status:" in text
        assert "--json" in text
        assert text.split("\n\n")[1].split()[0].strip(",") in {"List", "Show", "Write", "Check", "Find"}


@pytest.mark.parametrize(
    "line", ["plugins", "operators", "explain model.py:made", "new mine", "cache info", "cache export f", "cache clear"]
)
def test_json_has_the_number_of_its_schema(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCHGEAR_CACHE_DIR", str(tmp_path / "cache"))
    Path("model.py").write_text(MODEL)
    assert main([*line.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] >= 1


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    code = "from switchgear_tools import cli, commands\n"
    code += "commands.COMMANDS['plugins'] = lambda chosen: print('x' * 10**6) or 0\n"
    code += "raise SystemExit(cli.main(['plugins']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert not process.stderr.read()
    assert process.returncode == 1


def test_a_folder_that_nobody_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    file.write_text("")  # root may write to any folder, but to none inside of a file
    monkeypatch.setattr("switchgear_tools.commands.Path.cwd", lambda: file / "folder")
    assert main(["new", "mine"]) == 1
    assert main(["cache", "export", str(file / "archive")]) == 1
    messages = capsys.readouterr().err.splitlines()
    assert [message.partition(":")[0] for message in messages] == ["switchgear new", "switchgear cache"]
    assert all("cannot be written" in message for message in messages)
