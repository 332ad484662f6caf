"""The cache on disk: whose folder is used, and what becomes of entries that are damaged or somebody else's."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import pytest

from switchgear import disk_cache
from switchgear.errors import CacheWarning

unix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have no owner and mode here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def is_unused(reason: str) -> bool:
    """Whether nothing is kept, and that is told once."""
    with pytest.warns(CacheWarning, match=reason) as told:
        disk_cache.store("key", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        disk_cache.store("key", 1)
        return len(told) == 1 and disk_cache.load("key") is None


@unix
def test_the_folder_is_this_user_s_alone_and_says_whose_it_is(folder: Path) -> None:
    disk_cache.store("key", [1])
    entries = folder / "entries"
    assert stat.S_IMODE(entries.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in disk_cache.everything()} == {0o600}
    assert (entries / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    assert disk_cache.load("key") == [1]
    disk_cache.drop("key")
    assert disk_cache.load("key") is None


@unix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(folder: Path, mode: int) -> None:
    disk_cache.store("key", 1)
    (folder / "entries").chmod(mode)
    assert is_unused("nothing is kept on disk: others may write to ")


@unix
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root alone can give a folder away")
def test_a_folder_of_another_user_s_is_not_used(folder: Path) -> None:
    disk_cache.store("key", 1)
    os.chown(folder / "entries", 65534, 65534)
    assert is_unused("belongs to another user")
    os.chown(folder / "entries", 0, 0)
    assert disk_cache.load("key") == 1


def test_a_folder_that_holds_something_else_is_not_used(folder: Path) -> None:
    (folder / "entries").mkdir(parents=True, mode=0o700)
    (folder / "entries" / "thesis").touch()
    assert is_unused("was not made by Switchgear")
    assert [one.name for one in (folder / "entries").iterdir()] == ["thesis"]
    assert [one.name for one in folder.iterdir()] == ["entries"]


@unix
def test_a_link_to_a_folder_is_not_used(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.mkdir()
    (folder / "entries").symlink_to(tmp_path / "elsewhere")
    assert is_unused("is no folder")


def test_an_empty_folder_is_taken(folder: Path) -> None:
    (folder / "entries").mkdir(parents=True, mode=0o700)
    disk_cache.store("key", 1)
    assert disk_cache.load("key") == 1


def test_all_who_make_the_folder_at_once_use_it(folder: Path) -> None:
    start = threading.Barrier(8)
    places: list[Path | None] = []

    def make() -> None:
        start.wait()
        places.append(disk_cache.entries())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert places == [folder.resolve() / "entries"] * 8
    assert [one.name for one in folder.iterdir()] == ["entries"]


def damaged(content: bytes, places: int, seed: int) -> list[bytes]:
    """The content, truncated and altered at so many places each."""
    draw = random.Random(seed)
    copies = []
    for _ in range(places):
        copies.append(content[: draw.randrange(len(content))])
        altered = bytearray(content)
        place = draw.randrange(len(content))
        altered[place : place + draw.choice((1, 64))] = draw.choice((b"", b"\0", bytes([altered[place] ^ 1])))
        copies.append(bytes(altered))
    return [copy for copy in copies if copy != content]


VALUES = {
    "times": [{"inductor": 1.25e-5, "torch": 3e-5}],
    "answers": {"('region', 1)": ["inductor", "measured", 0.5], "other": [None, "", 0.0]},
    "a record": [
        {"code": "def call(args):\n    return args\n" * 20, "libraries": {"cpp_fused": "0" * 64}, "holds": None}
    ],
    "a note": True,
    "names": ["aten.sin.default", "aten.cos.default"] * 40,
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_that_is_damaged_is_deleted_and_made_anew(folder: Path, kind: str) -> None:
    disk_cache.store(kind, VALUES[kind])
    (file,) = disk_cache.everything()
    content = file.read_bytes()
    for copy in damaged(content, 100, seed=1):
        file.write_bytes(copy)
        assert disk_cache.load(kind) is None
        assert not file.exists()
        disk_cache.store(kind, VALUES[kind])
        assert disk_cache.load(kind) == VALUES[kind]
    assert file.read_bytes() == content


def test_a_file_that_is_damaged_is_deleted_and_made_anew(folder: Path, tmp_path: Path) -> None:
    # once: the process was ended by SIGBUS when a truncated library was loaded
    (tmp_path / "library.so").write_bytes(random.Random(0).randbytes(60_000))
    digest = disk_cache.store_file(tmp_path / "library.so")
    (file,) = disk_cache.everything()
    assert disk_cache.load_file(digest) == file
    for copy in damaged(file.read_bytes(), 100, seed=2):
        file.write_bytes(copy)
        assert disk_cache.load_file(digest) is None
        assert not file.exists()
        assert disk_cache.store_file(tmp_path / "library.so") == digest
        assert disk_cache.load_file(digest) == file


def test_an_entry_under_the_name_of_another_is_none(folder: Path) -> None:
    disk_cache.store("one", 1)
    (file,) = disk_cache.everything()
    disk_cache.store("two", 2)
    (other,) = [one for one in disk_cache.everything() if one != file]
    os.replace(file, other)
    assert disk_cache.load("two") is None


def test_the_folder_of_a_process_is_empty_and_goes_with_it(folder: Path) -> None:
    program = """if True:
        import os
        from switchgear import disk_cache
        place = disk_cache.workplace()
        assert not [*place.iterdir()] and disk_cache.workplace() == place
        (place / "file").touch()
        assert not disk_cache.is_abandoned(place)
        if (child := os.fork()) == 0:
            raise SystemExit(disk_cache.workplace() == place)
        assert os.waitpid(child, 0)[1] == 0
        assert (place / "file").exists()
        print(place)"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    place = Path(done.stdout.strip())
    assert place.parent == folder.resolve() / "entries"
    assert not place.exists()


@unix
def test_the_folder_of_a_process_that_was_killed_is_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os; from switchgear import disk_cache; print(disk_cache.workplace(), flush=True); os.kill(0, 9)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, start_new_session=True)
    place = Path(done.stdout.strip())
    assert place.exists()
    assert not disk_cache.is_abandoned(place)  # it is new: its process might be about to lock it
    monkeypatch.setattr(disk_cache, "_PATIENCE", 0)
    assert disk_cache.is_abandoned(place)
    own = disk_cache.workplace()
    assert not place.exists()
    assert own.exists()


@unix
def test_without_a_cache_a_process_still_has_a_folder_of_its_own(folder: Path) -> None:
    folder.touch()
    with pytest.warns(CacheWarning, match="nothing is kept on disk"):
        place = disk_cache.workplace()
    assert place.parent == Path(tempfile.gettempdir())
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert disk_cache.shared("headers") is None
