"""`switchgear cache`: what is kept on disk is shown, deleted, and carried to another machine of the same kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from switchgear import disk_cache
from switchgear.errors import CacheWarning
from switchgear_tools import caching, cli

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
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    return tmp_path


def move_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHGEAR_CACHE_DIR", str(folder))


def run(*arguments: str) -> str:
    """What another process prints, for which all executors are installed."""
    variables = {name: value for name, value in os.environ.items() if name != "SWITCHGEAR_DISABLE"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=variables, check=True, timeout=300, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_what_was_compiled_elsewhere_is_not_compiled_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("-c", PROGRAM)
    assert (place / "calls").exists()
    run("-m", "switchgear", "cache", "export", str(place / "cache.zip"))
    move_to(place / "elsewhere", monkeypatch)
    assert "entries added" in run("-m", "switchgear", "cache", "import", str(place / "cache.zip"), "--trust")
    (place / "here").rename(place / "gone")
    (place / "calls").unlink()
    run("-c", PROGRAM)
    assert not (place / "calls").exists()


def test_info_and_clear(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk_cache.store("key", "x" * 100_000)
    assert cli.main(["cache", "info"]) == 0
    assert capsys.readouterr().out == f"{disk_cache.entries()}: 1 files, 0.1 MB\n"
    assert disk_cache.load("key")
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"{disk_cache.entries()}: 1 files deleted, 0.1 MB\n"
    assert disk_cache.load("key") is None
    assert cli.main(["cache", "info"]) == 0


def test_clear_and_export_touch_nothing_but_entries(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # once: all that lay in the folder was deleted, a thesis, keys and virtual environments, and exported, too
    disk_cache.store("key", 1)
    entries = disk_cache.entries()
    assert entries is not None
    others = [entries.parent / "thesis.tex", entries.parent / "venv" / "x", entries / "id_rsa", entries / "a" / "x"]
    others += [entries / "work", entries / "0.entry", entries / f"{'0' * 64}.json", entries / ".ssh" / "work-1"]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_text("precious")
    (place / "outside").mkdir()
    (place / "outside" / "file").write_text("precious")
    (entries / "work-link").symlink_to(place / "outside")
    (entries / "shared-headers").mkdir()
    (entries / "shared-headers" / "x.h.gch").touch()
    assert cli.main(["cache", "export", str(place / "cache.zip")]) == 0
    with zipfile.ZipFile(place / "cache.zip") as archive:
        manifest, entry = archive.namelist()
    assert manifest == "manifest.json"
    assert disk_cache.ENTRY.fullmatch(entry)
    monkeypatch.setattr(disk_cache, "_PATIENCE", 0)
    assert cli.main(["cache", "clear"]) == 0
    assert disk_cache.load("key") is None
    assert not (entries / "shared-headers").exists()
    assert {other.read_text() for other in (*others, place / "outside" / "file")} == {"precious"}


def test_clear_leaves_a_folder_that_is_not_switchgear_s(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = place / "here" / "entries" / f"{'0' * 64}.entry"
    theirs.parent.mkdir(parents=True, mode=0o700)
    theirs.touch()
    with pytest.warns(CacheWarning, match="was not made by Switchgear"):
        assert cli.main(["cache", "clear"]) == 1
    assert theirs.exists()


def test_export_follows_no_link(place: Path) -> None:
    # once: a link at FILE.PID.new was followed, and what it led to overwritten
    disk_cache.store("key", 1)
    archive = place / "cache.zip"
    precious = place / "precious"
    precious.write_text("precious")
    for link in (archive, place / f"cache.zip.{os.getpid()}.new"):
        link.symlink_to(precious)
    assert cli.main(["cache", "export", str(archive)]) == 0
    assert precious.read_text() == "precious"
    assert not archive.is_symlink()


def test_an_export_that_is_broken_off_leaves_what_was_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = place / "cache.zip"
    disk_cache.store("old", 1)
    assert cli.main(["cache", "export", str(archive)]) == 0
    before = archive.read_bytes()

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "writestr", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cli.main(["cache", "export", str(archive)])
    assert archive.read_bytes() == before
    assert list(place.glob("cache*")) == [archive]


@pytest.mark.parametrize("target", ["nowhere/cache.zip", "."])
def test_a_file_that_cannot_be_written(target: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "export", str(place / target)]) == 1
    assert "cannot be written: " in capsys.readouterr().err


def test_files_are_carried_and_those_that_are_there_stay(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = str(place / "cache.zip")
    disk_cache.store("new", 1)
    disk_cache.store("old", 2)
    assert cli.main(["cache", "export", archive]) == 0
    move_to(place / "elsewhere", monkeypatch)
    disk_cache.store("old", 3)
    assert cli.main(["cache", "import", archive, "--trust"]) == 0
    assert (disk_cache.load("new"), disk_cache.load("old")) == (1, 3)


def test_nothing_is_imported_from_whom_nobody_trusts(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "import", str(place / "missing")]) == 1
    assert capsys.readouterr().err == (
        "switchgear cache: nothing is imported without --trust: code in FILE will run as you, so trust everyone who "
        "could write to it\n"
    )


def manifest(**others: object) -> tuple[str, bytes]:
    content = {"format": caching._FORMAT, "machine": caching._machine(), **others}
    return "manifest.json", json.dumps(content).encode()


def entry(key: str = "key", value: object = 1) -> tuple[str, bytes]:
    body = json.dumps({"key": key, "value": value}).encode()
    name = f"{disk_cache.digest_of(key.encode())}.entry"
    return name, disk_cache.digest_of(body).encode() + b"\n" + body


def packed(file: Path, *members: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a name that is there twice
        for name, content in members:
            archive.writestr(name, content)
    return file


def test_another_kind_of_machine_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = caching._machine()
    # once: only the keys that the archive had were compared
    for machine, said in (
        ({**own, "PyTorch": "2.0.0"}, "PyTorch is 2."),
        ({}, "PyTorch is 2."),
        ({**own, "moon": "full"}, "moon is missing here, and full there"),
        (None, "does not say which machine"),
    ):
        archive = packed(place / "other.zip", manifest(machine=machine), entry())
        assert cli.main(["cache", "import", str(archive), "--trust"]) == 1
        assert said in capsys.readouterr().err
    assert not disk_cache.everything()


_NAME = entry()[0]
_FILE = f"{disk_cache.digest_of(b'x')}.file"
BAD: dict[str, Sequence[tuple[str, bytes]]] = {
    "nothing": (),
    "no manifest": (entry(),),
    "a manifest that is no JSON": (("manifest.json", b"{"),),
    "a manifest that is nested deep": (("manifest.json", b"[" * 200_000),),
    "a manifest that is a list": (("manifest.json", b"[]"),),
    "a manifest of another format": (manifest(format=2), entry()),
    "an absolute path": (manifest(), (f"/tmp/{_FILE}", b"x")),
    "a path to the parent": (manifest(), (f"../{_FILE}", b"x")),
    "a path in a folder": (manifest(), (f"inductor/{_FILE}", b"x")),
    "a name with a line break": (manifest(), (f"{_FILE}\n", b"x")),
    "a folder": (manifest(), (f"{_FILE}/", b"")),
    "the same twice": (manifest(), entry(), entry()),
    "two manifests": (manifest(), entry(), manifest()),
    "another name": (manifest(), ("sitecustomize.py", b"x")),
    "an entry of another key": (manifest(), (_NAME, entry("other")[1])),
    "an entry of another digest": (manifest(), (_NAME, b"0" * 64 + entry()[1][64:])),
    "an entry that is no JSON": (manifest(), (_NAME, disk_cache.digest_of(b"x").encode() + b"\nx")),
    "a file of another digest": (manifest(), (_FILE, b"y")),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_sound_archive_is_refused_as_a_whole(
    kind: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # once: an archive was unpacked before anything was looked at, and only Python's filter kept it inside
    head, bad = BAD[kind][:1], BAD[kind][1:]
    archive = packed(place / "bad.zip", *head, *([entry("good"), *bad] if bad else ()))
    assert cli.main(["cache", "import", str(archive), "--trust"]) == 1
    assert capsys.readouterr().err.startswith(f"switchgear cache: {archive} is ")
    assert not disk_cache.everything()
    assert {one.name for one in place.rglob("*")} == {"bad.zip", "compiler", "here", "entries", "CACHEDIR.TAG"}


def test_what_is_no_archive_or_damaged_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "text").write_text("no archive")
    packed(place / "whole", manifest(), entry(), (_FILE, b"x"))
    content = (place / "whole").read_bytes()
    files = [place / "text", place / "missing", place]
    for size in range(1, len(content), 20):
        files.append(place / f"first {size} bytes")
        files[-1].write_bytes(content[:size])
    for file in files:
        assert cli.main(["cache", "import", str(file), "--trust"]) == 1
        assert f"{file} is " in capsys.readouterr().err
    assert not disk_cache.everything()
    assert cli.main(["cache", "import", str(place / "whole"), "--trust"]) == 0
    assert disk_cache.load("key") == 1


def test_what_is_too_large_is_refused_before_it_is_read(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(caching, "_LARGEST_ENTRY", 10_000)
    monkeypatch.setattr(caching, "_LARGEST", 30_000)
    monkeypatch.setattr(caching, "_MOST", 10)
    large = entry(value="x" * 20_000)
    many = [entry(str(number)) for number in range(11)]
    sum_of_all = [entry(str(number), "x" * 8000) for number in range(5)]
    for members in ([large], many, sum_of_all):
        archive = packed(place / "large", manifest(), *members)
        assert cli.main(["cache", "import", str(archive), "--trust"]) == 1
        assert "is too large" in capsys.readouterr().err
    assert not disk_cache.everything()


def test_a_file_is_given_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "export"]) == 2
    assert cli.main(["cache", "clear", "file"]) == 2
    assert "takes a FILE" in (said := capsys.readouterr().err)
    assert "takes no FILE" in said
    assert cli.main(["cache", "clear", "--trust"]) == 2
    assert "takes no --trust" in capsys.readouterr().err
