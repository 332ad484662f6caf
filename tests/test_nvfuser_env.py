"""What `scripts/make_nvfuser_env.py` asks for, and what it says where something is missing."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from scripts import make_nvfuser_env as script


def python(path: Path, said: str) -> str:
    """A program that says what a Python would say of its version, whatever it is asked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{said}'\n")
    path.chmod(0o755)
    return str(path)


def test_everything_but_torch_is_required() -> None:
    core = tomllib.loads((script.ROOT / "core" / "pyproject.toml").read_text())["project"]
    groups = tomllib.loads((script.ROOT / "pyproject.toml").read_text())["dependency-groups"]
    (torch,) = {*core["dependencies"], *groups["test"]} - set(script.requirements())
    assert script.HIGHSPY in (script.ROOT / "hatch_build.py").read_text()
    assert torch.startswith("torch>")


def test_nvfuser_brings_no_torch_of_its_own() -> None:
    first, second, third = script.installations().values()
    assert first[0] == script.TORCH
    assert second == ["--no-deps", "--pre", script.NVFUSER]
    assert third == ["--no-deps", "--editable", str(script.ROOT / "core"), "--editable", str(script.ROOT)]


def test_find_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", python(tmp_path / "this", "3.13"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    with pytest.raises(
        script.CannotMake, match=r"Python 3.12 is missing: .*this says '3.13'; python3.12 was not found\."
    ):
        script.find_python(None)
    installed = python(tmp_path / "pyenv/versions/3.12.1/bin/python3.12", "3.12")
    assert script.find_python(None) == installed
    # pyenv's own command, for a version that is not switched on
    python(tmp_path / "path/python3.12", "pyenv: python3.12: command not found")
    assert script.find_python(None) == installed
    python(tmp_path / "path/python3.12", "3.12")
    assert script.find_python(None) == "python3.12"
    with pytest.raises(script.CannotMake, match=r"this says '3.13'\. Name one"):
        script.find_python(sys.executable)


def test_what_is_missing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([str(tmp_path / "env"), "--python", "nonesuch"]) == 1
    said = capsys.readouterr().err
    assert said == "no environment with nvFuser: Python 3.12 is missing: nonesuch was not found. Name one by --python\n"
    assert not (tmp_path / "env").exists()


def test_what_pip_says_is_passed_on() -> None:
    fails = [sys.executable, "-c", "import sys; sys.exit('looking\\nno matching distribution')", "-qq"]
    with pytest.raises(script.CannotMake, match=r"^torch is missing: no matching distribution$"):
        script.run(fails, "torch")


def test_a_made_environment_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python(tmp_path / "bin/python", "pip 26")
    asked: list[str] = []
    monkeypatch.setattr(script, "run", lambda command, what: asked.append(what))
    assert script.make(tmp_path, None)
    assert asked == [*script.installations(), "a working nvFuser"]
    assert not script.make(tmp_path, None)
    monkeypatch.setattr(script, "NVFUSER", "another")
    assert script.make(tmp_path, None)
    (tmp_path / "bin/python").write_text("#!/bin/sh\nexit 1\n")  # its Python is gone
    monkeypatch.setattr(script, "find_python", lambda named: "python3.12")
    assert script.make(tmp_path, None)
    assert asked[-5] == "the venv module of Python 3.12"
