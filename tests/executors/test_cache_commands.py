"""`switchgear cache`: what is kept on disk is shown, deleted, and carried to another machine of the same kind."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from switchgear import cli, disk_cache
from switchgear.inspect import caching

PROGRAM = """
import torch, switchgear as sg
jitted = sg.jit(lambda x: torch.sin(torch.cos(x) + 1), executors=["inductor", "torch"], compile="now")
x = torch.randn(64)
assert torch.allclose(jitted(x), torch.sin(torch.cos(x) + 1), atol=1e-5)
"""
#: A compiler that notes when it is called.
COMPILER = """#!/bin/sh
echo "$@" >> {log}
exec g++ "$@"
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on its disk."""
    move_to(tmp_path / "here", monkeypatch)
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER.format(log=tmp_path / "calls"))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return tmp_path


def move_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHGEAR_CACHE_DIR", str(folder / "own"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))


def run(*arguments: str) -> str:
    """What another process prints, for which all executors are installed."""
    variables = {name: value for name, value in os.environ.items() if name != "SWITCHGEAR_DISABLE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=variables, check=True, timeout=300, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_what_was_compiled_elsewhere_is_not_compiled_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("-c", PROGRAM)
    assert (place / "calls").exists()
    run("-m", "switchgear", "cache", "export", str(place / "cache.tar.gz"))
    move_to(place / "elsewhere", monkeypatch)
    assert "files taken in" in run("-m", "switchgear", "cache", "import", str(place / "cache.tar.gz"))
    (place / "here").rename(place / "gone")
    (place / "calls").unlink()
    run("-c", PROGRAM)
    assert not (place / "calls").exists()


def test_info_and_clear(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = place / "here" / "own" / "one.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("x" * 100_000)
    assert cli.main(["cache", "info"]) == 0
    assert str(kept.parent) in (said := capsys.readouterr().out)
    assert "0.1" in said
    assert kept.exists()
    assert cli.main(["cache", "clear"]) == 0
    assert not kept.exists()
    assert cli.main(["cache", "info"]) == 0


def test_what_executors_keep_is_deleted_only_if_asked_for(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # once: what torch.compile of other projects had put there went, too
    own, others = place / "here" / "own" / "one.json", place / "here" / "inductor" / "of_torch_compile.py"
    for file in (own, others):
        file.parent.mkdir(parents=True)
        file.write_text("x")
    folders = {caching.OWN: own.parent, "inductor": others.parent}
    monkeypatch.setattr(caching, "_folders", lambda plugins: folders)
    assert cli.main(["cache", "info", "--all"]) == 2
    assert cli.main(["cache", "clear"]) == 0
    assert not own.exists()
    assert others.exists()
    said = capsys.readouterr().out
    assert str(others.parent) not in said
    assert "--all also deletes what other projects may use: that of inductor" in said
    assert cli.main(["cache", "clear", "--all"]) == 0
    assert not others.exists()
    assert "--all" not in capsys.readouterr().out


def test_an_export_that_is_broken_off_leaves_what_was_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = place / "cache.tar.gz"
    disk_cache.store("old", 1)
    assert cli.main(["cache", "export", str(archive)]) == 0
    before = archive.read_bytes()

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tarfile.TarFile, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cli.main(["cache", "export", str(archive)])
    assert archive.read_bytes() == before
    assert list(place.glob("cache*")) == [archive]


@pytest.mark.parametrize("target", ["nowhere/cache.tar.gz", "."])
def test_a_file_that_cannot_be_written(target: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "export", str(place / target)]) == 1
    assert "cannot be written: " in capsys.readouterr().err


def test_files_are_carried_and_those_that_are_there_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = str(place / "cache.tar.gz")
    disk_cache.store("new", 1)
    disk_cache.store("old", 2)
    assert cli.main(["cache", "export", archive]) == 0
    move_to(place / "elsewhere", monkeypatch)
    disk_cache.store("old", 3)
    assert cli.main(["cache", "import", archive]) == 0
    assert (disk_cache.load("new"), disk_cache.load("old")) == (1, 3)


def test_another_kind_of_machine_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.dumps({"machine": {**caching._machine(), "PyTorch": "2.0.0"}}).encode()
    with tarfile.open(place / "other.tar.gz", "w:gz") as archive:
        described = tarfile.TarInfo("manifest.json")
        described.size = len(manifest)
        archive.addfile(described, io.BytesIO(manifest))
    assert cli.main(["cache", "import", str(place / "other.tar.gz")]) == 1
    assert "is of no use here: PyTorch is 2.1" in (said := capsys.readouterr().err)
    assert "2.0.0 there" in said


def test_what_is_no_archive_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "text").write_text("no archive")
    assert cli.main(["cache", "import", str(place / "text")]) == 1
    assert cli.main(["cache", "import", str(place / "missing")]) == 1
    assert capsys.readouterr().err.count("is no exported cache") == 2


def test_a_file_is_given_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "export"]) == 2
    assert cli.main(["cache", "clear", "file"]) == 2
    assert "takes a FILE" in (said := capsys.readouterr().err)
    assert "takes no FILE" in said
