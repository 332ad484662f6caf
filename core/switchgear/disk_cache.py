"""Cache on disk: JSON values and files, by keys of any length, in one folder that only this user may write to.

Each entry carries a digest. A damaged entry is deleted when read. A folder of another user, or with write access for
others, is refused with a `CacheWarning`: anyone who writes to the folder can run code as the user.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from switchgear_core.errors import CacheWarning

#: The variable that names the folder, instead of `switchgear` in `XDG_CACHE_HOME` or `~/.cache`.
CACHE_VARIABLE = "SWITCHGEAR_CACHE_DIR"
#: The file that marks a folder as Switchgear's, for `switchgear cache clear` and for backup programs.
_MARKER = "CACHEDIR.TAG"
_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# A cache of Switchgear's: `switchgear cache clear` deletes what is in here.\n"
)
#: The names of values and of files.
ENTRY = re.compile(r"[0-9a-f]{64}\.(entry|file)")
#: The names of folders for one process, for all processes, and of unfinished files.
_OTHERS = re.compile(r"(work-\w+|shared-\w+|tmp\w+\.new)")


def folder() -> Path:
    """Return the folder of the cache, before any check.

    Raises:
        RuntimeError: there is no home directory.
    """
    path = os.environ.get(CACHE_VARIABLE)
    return (
        Path(path)
        if path
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "switchgear"
    )


def entries() -> Path | None:
    """Return the folder of the entries, created if missing; None, after one warning, if unusable."""
    try:
        place = folder().absolute().resolve() / "entries"
        fault = _fault(place)
    except (OSError, RuntimeError) as error:
        fault = str(error)
    if fault:
        _warn(fault)
    return None if fault else place


def _fault(place: Path) -> str:
    """Create the folder if missing; return why it cannot be trusted."""
    if not os.path.lexists(place):
        _make(place)
    status = os.lstat(place)
    if not stat.S_ISDIR(status.st_mode):
        return f"{place} is no folder"
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        return f"{place} belongs to another user (number {status.st_uid})"
    if hasattr(os, "geteuid") and status.st_mode & 0o022:
        return f"others may write to {place}"
    with os.scandir(place) as items:
        is_empty = next(items, None) is None
    if is_empty:
        _make(place)
    return "" if _is_ours(place) else f"{place} was not made by Switchgear"


def _is_ours(place: Path) -> bool:
    try:
        return (place / _MARKER).read_text() == _TAG
    except (OSError, ValueError):
        return False


def _make(place: Path) -> None:
    """Create the folder together with its marker: another process may do so concurrently."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix="entries-", dir=place.parent))
    try:
        (new / _MARKER).write_text(_TAG)
        new.rename(place)
    except OSError:
        shutil.rmtree(new)
        if not place.exists():
            raise


@functools.cache
def _warn(fault: str) -> None:
    warnings.warn(
        f"nothing is kept on disk: {fault}; name a folder of your own in the variable {CACHE_VARIABLE}",
        CacheWarning,
        stacklevel=4,
    )


def load(key: str) -> Any:
    """Return the value stored under a key.

    Args:
        key: a text of any length.

    Returns:
        The value; None if there is none, or if its entry is damaged.
    """
    content = _content(_name(key))
    return None if content is None else json.loads(content.partition(b"\n")[2])["value"]


def store(key: str, value: object) -> None:
    """Store a value under a key; do nothing if the folder cannot be written to.

    Args:
        key: a text of any length.
        value: a value that JSON can hold.
    """
    place, body = entries(), json.dumps({"key": key, "value": value}).encode()
    if place is not None:
        with contextlib.suppress(OSError):
            write(place / _name(key), digest_of(body).encode() + b"\n" + body)


def drop(key: str) -> None:
    """Delete the value stored under a key."""
    place = entries()
    if place is not None:
        with contextlib.suppress(OSError):
            (place / _name(key)).unlink(missing_ok=True)


def load_file(digest: str) -> Path | None:
    """Return the path of a stored file, after comparing its content with its digest.

    Args:
        digest: the result of `store_file`.

    Returns:
        The path; None if the file is missing or damaged.
    """
    place, name = entries(), f"{digest}.file"
    return None if place is None or _content(name) is None else place / name


def store_file(file: Path) -> str:
    """Store a copy of a file.

    Args:
        file: the file to copy.

    Returns:
        The digest of its content, for `load_file`.

    Raises:
        OSError: the file cannot be stored.
    """
    content, place = file.read_bytes(), entries()
    if place is None:
        raise OSError("there is no cache on disk")
    digest = digest_of(content)
    if load_file(digest) is None:
        write(place / f"{digest}.file", content)
    return digest


def digest_of(content: bytes) -> str:
    """Return the digest of a content, as hexadecimal text."""
    return hashlib.sha256(content).hexdigest()


def is_sound(name: str, content: bytes) -> bool:
    """Check whether the content of an entry matches its digest."""
    stem, _, kind = name.partition(".")
    if kind == "file":
        return digest_of(content) == stem
    digest, _, body = content.partition(b"\n")
    if digest_of(body).encode() != digest:
        return False
    try:
        value = json.loads(body)
        return set(value) == {"key", "value"} and _name(value["key"]) == name
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False


def write(file: Path, content: bytes) -> None:
    """Write a file atomically, and create its folders.

    Raises:
        OSError: the file cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=file.parent, suffix=".new")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.replace(new, file)
    except BaseException:
        os.unlink(new)
        raise


def workplace() -> Path:
    """Return a folder of the current process, empty at first and removed at its end.

    Raises:
        OSError: no folder can be created.
    """
    process, folder = os.getpid(), entries()
    if not _workplace(process, folder).is_dir():
        _workplace.cache_clear()
    return _workplace(process, folder)


@functools.cache
def _workplace(process: int, folder: Path | None) -> Path:
    for path in folder.glob("work-*") if folder else ():
        if is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix="work-", dir=folder))
    _LOCKS[place] = _locked(place)
    atexit.register(_remove, place, process)
    return place


#: Descriptors that stay locked while the folder's process lives.
_LOCKS: dict[Path, int | None] = {}
#: Seconds within which a process has locked its new folder.
_PATIENCE = 60


def _locked(place: Path) -> int | None:
    """Lock a folder; return None if another process has locked it, or where such locks do not exist."""
    try:
        import fcntl  # noqa: PLC0415 - Windows has none
    except ImportError:
        return None
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_abandoned(place: Path) -> bool:
    """Check whether the process of a folder has ended."""
    try:
        if place in _LOCKS or time.time() - place.stat().st_mtime < _PATIENCE:
            return False
        lock = _locked(place)
    except OSError:
        return False
    if lock is not None:
        os.close(lock)
    return lock is not None


def _remove(place: Path, process: int) -> None:
    if os.getpid() == process:  # not in a fork
        shutil.rmtree(place, ignore_errors=True)


def shared(name: str) -> Path | None:
    """Return a folder that all processes write to, without checks of its content; None without a cache on disk."""
    place = entries()
    if place is not None:
        place = place / f"shared-{name}"
        with contextlib.suppress(OSError):
            place.mkdir(mode=0o700, exist_ok=True)
    return place


def everything() -> list[Path]:
    """Return the files and folders of Switchgear in the cache folder; none if the folder cannot be used."""
    place = entries()
    return sorted(
        path
        for path in (place.iterdir() if place is not None else ())
        if ENTRY.fullmatch(path.name) or _OTHERS.fullmatch(path.name)
    )


def _content(name: str) -> bytes | None:
    """Return the content of an entry; delete a damaged entry."""
    place = entries()
    if place is None:
        return None
    try:
        content = (place / name).read_bytes()
        if is_sound(name, content):
            return content
        (place / name).unlink()
    except OSError:
        pass
    return None


def _name(key: str) -> str:
    return f"{digest_of(key.encode())}.entry"
