"""The cache on disk: measure, empty, export and import.

An archive holds code that runs as the importing user. Every entry is checked before the first is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from switchgear import disk_cache
from switchgear.machine import machine
from switchgear.progress import Progress
from switchgear_core.errors import InvalidInput

_MANIFEST = "manifest.json"
_FORMAT = 3
#: Limits of an archive and of one entry in an archive, in bytes.
_LARGEST, _LARGEST_ENTRY = 1 << 33, 1 << 28
_MOST = 100_000
_BROKEN = (zipfile.BadZipFile, zlib.error)


class CacheUse(NamedTuple):
    """Size of the folder of the cache, in files and bytes."""

    folder: Path
    files: int
    bytes: int


def cache_use() -> CacheUse | None:
    """Return the size of the cache; None if there is no folder."""
    folder = disk_cache.entries()
    if folder is None:
        return None
    sizes = [file.lstat().st_size for entry in disk_cache.everything() for file in _files(entry)]
    return CacheUse(folder, len(sizes), sum(sizes))


def clear_cache() -> CacheUse | None:
    """Delete Switchgear's own cache, and nothing else; return the size before."""
    use = cache_use()
    for entry in disk_cache.everything():
        if not entry.is_dir():
            entry.unlink(missing_ok=True)
        elif not entry.name.startswith("work-") or disk_cache.is_abandoned(entry):
            shutil.rmtree(entry, ignore_errors=True)
    return use


def export_cache(file: Path) -> int:
    """Put the sound entries into an archive; return their number. Raises `InvalidInput`."""
    manifest = json.dumps({"format": _FORMAT, "machine": _machine()})
    entries = [entry for entry in disk_cache.everything() if disk_cache.ENTRY.fullmatch(entry.name)]
    count, new = 0, None
    try:
        # a new file with a random name: at a name that others can guess, a link may lie
        descriptor, new = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".new")
        with (
            os.fdopen(descriptor, "wb") as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
            Progress(len(entries), "exporting", is_shown=True, unit="files") as progress,
        ):
            archive.writestr(_MANIFEST, manifest)
            for entry in entries:
                content = entry.read_bytes()
                if disk_cache.is_sound(entry.name, content):
                    archive.writestr(entry.name, content)
                    count += 1
                progress.after(entry)
        os.replace(new, file)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error}") from error
    finally:
        if new is not None:
            with contextlib.suppress(OSError):
                os.unlink(new)
    return count


def import_cache(file: Path) -> int:
    """Add the entries of an archive that `export_cache` wrote on a machine of the same kind; present entries stay.

    Returns:
        The number of entries added.

    Raises:
        InvalidInput: for another kind of machine, naming the differences; for a file that is no such archive; and
            where there is no cache to import to.
    """
    place = disk_cache.entries()
    if place is None:
        raise InvalidInput("there is no folder to import to")
    try:
        with zipfile.ZipFile(file) as archive:
            for _ in _sound_entries(archive):
                pass
            count = 0
            for name, content in _sound_entries(archive):
                if not (place / name).exists():
                    disk_cache.write(place / name, content)
                    count += 1
            return count
    except InvalidInput as error:
        raise InvalidInput(f"{file} {error}") from error
    except (OSError, EOFError, LookupError, RuntimeError, ValueError, *_BROKEN) as error:
        raise InvalidInput(
            f"{file} is no exported cache: {type(error).__name__}: {error}"
        ) from error


def _sound_entries(archive: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    """Yield the entries of an archive, each checked. Raises `InvalidInput`, and the errors of `zipfile`."""
    members = archive.infolist()
    sizes = [member.file_size for member in members]
    if len(sizes) > _MOST or sum(sizes) > _LARGEST or max(sizes, default=0) > _LARGEST_ENTRY:
        raise InvalidInput("is too large: it goes beyond the limits of an import")
    _check_machine(archive.read(_MANIFEST))
    names = {_MANIFEST}
    for member in members[1:]:
        name = member.filename
        if name in names or not disk_cache.ENTRY.fullmatch(name):
            raise InvalidInput(f"is no exported cache: {name!r} is no name of an entry")
        content = archive.read(member)
        if not disk_cache.is_sound(name, content):
            raise InvalidInput(f"is damaged: {name} differs from the export")
        names.add(name)
        yield name, content


def _check_machine(manifest: bytes) -> None:
    """Raise `InvalidInput` unless an archive comes from a machine of the same kind, in every respect."""
    facts = json.loads(manifest)
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
        raise InvalidInput(f"is no exported cache of format {_FORMAT}")
    there, here = facts.get("machine"), _machine()
    if not isinstance(there, dict):
        raise InvalidInput("does not say which machine it is from")
    differences = [
        f"{key} is {here.get(key, 'missing')} here, and {there.get(key, 'missing')} there"
        for key in sorted({*here, *there})
        if key not in here or here[key] != there.get(key)
    ]
    if differences:
        raise InvalidInput(f"is of no use here: {'; '.join(differences)}")


def _files(path: Path) -> Iterator[Path]:
    yield from path.rglob("*") if path.is_dir() else (path,)


def _machine() -> dict[str, str]:
    count = torch.cuda.device_count()
    return machine([torch.device("cpu"), *(torch.device("cuda", index) for index in range(count))])
