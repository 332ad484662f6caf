"""A new plugin from the template: written, installed and tested as its author would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from switchgear_tools.cli import main


def test_new_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "relu6x"]) == 0
    printed = capsys.readouterr().out
    assert "pip install --editable switchgear-relu6x" in printed
    assert "switchgear test relu6x" in printed
    written = tmp_path / "switchgear-relu6x"
    files = sorted(path.relative_to(written).as_posix() for path in written.rglob("*") if path.is_file())
    assert "src/switchgear_relu6x/rules.py" in files
    left = [path for path in written.rglob("*.py") if "switchgear_example" in path.read_text()]
    assert not left
    assert "An example of a Switchgear plugin" in (written / "src/switchgear_relu6x/__init__.py").read_text()
    assert main(["new", "relu6x"]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["new", "Relu-6"]) == 1
    assert "use small letters, digits and underscores" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"), [("torch", "torch is installed already"), ("class", "no word of Python's")]
)
def test_names_that_would_not_run(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", name]) == 1
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_new_plugin_passes_its_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed as entry points in a folder on the path, which is what pip makes of it."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "relu6x"]) == 0
    source = tmp_path / "switchgear-relu6x" / "src"
    info = source / "switchgear_relu6x-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: switchgear-relu6x\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[switchgear]\nrelu6x = switchgear_relu6x\n")
    path = ":".join([str(source), *sys.path])
    for name, status in (("relu6x", 0), ("nobody", 1), ("contest", 1)):
        command = [sys.executable, "-m", "switchgear", "test", name, "--", "-q"]
        done = subprocess.run(command, env={"PYTHONPATH": path, "PATH": ""}, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        said = {"relu6x": "4 passed", "nobody": "no plugin called 'nobody' is loaded", "contest": "nothing to test"}
        assert said[name] in done.stdout + done.stderr
