"""What is kept on disk, Switchgear's and the executors': how much, and how it gets to another machine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from switchgear import disk_cache
from switchgear.errors import InvalidInput
from switchgear.machine import machine
from switchgear.progress import Progress
from switchgear.who.executor import FusionExecutor
from switchgear.who.plugins import Plugins

#: The name of what Switchgear itself keeps: times that were measured, and who runs which region.
OWN = "switchgear"
_MANIFEST = "manifest.json"


class CacheUse(NamedTuple):
    """What one keeps on disk."""

    owner: str
    folder: Path
    files: int
    bytes: int


def cache_uses(plugins: Plugins) -> list[CacheUse]:
    """Who keeps how much, and where."""
    uses = []
    for owner, folder in _folders(plugins).items():
        sizes = [file.stat().st_size for file in _files(folder)]
        uses.append(CacheUse(owner, folder, len(sizes), sum(sizes)))
    return uses


def clear_cache(plugins: Plugins, everything: bool) -> list[CacheUse]:
    """Delete what Switchgear itself keeps, or `everything`, which others may use too; returns what there was."""
    uses = [use for use in cache_uses(plugins) if everything or use.owner == OWN]
    for use in uses:
        shutil.rmtree(use.folder, ignore_errors=True)
    return uses


def export_cache(plugins: Plugins, file: Path) -> int:
    """Put it into an archive, with what it depends on; returns the number of files. Raises `InvalidInput`."""
    manifest = json.dumps({"machine": _machine()}).encode()
    members = [
        (one, f"{owner}/{one.relative_to(folder)}")
        for owner, folder in _folders(plugins).items()
        for one in _files(folder)
    ]
    unfinished = file.parent / f"{file.name}.{os.getpid()}.new"
    try:
        with (
            tarfile.open(unfinished, "w:gz") as archive,
            Progress(len(members), "exporting", shown=True, unit="files") as progress,
        ):
            described = tarfile.TarInfo(_MANIFEST)
            described.size = len(manifest)
            archive.addfile(described, io.BytesIO(manifest))
            for one, name in members:
                archive.add(one, name, recursive=False)
                progress.after(one)
        os.replace(unfinished, file)
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return len(members)


def import_cache(plugins: Plugins, file: Path) -> int:
    """Take in what `export_cache` made on a machine of the same kind; what is there already stays.

    Returns the number of files taken in. Raises `InvalidInput` for another kind of machine, naming what differs, and
    for what is no such archive.
    """
    with tempfile.TemporaryDirectory() as place:
        try:
            with tarfile.open(file) as archive:
                archive.extractall(place, filter="data")
            manifest = json.loads(Path(place, _MANIFEST).read_text())["machine"]
        except (OSError, tarfile.TarError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"{file} is no exported cache: {type(error).__name__}: {error}"
            ) from error
        here = _machine()
        differences = [
            f"{what} is {here.get(what, 'missing')} here, and {value} there"
            for what, value in manifest.items()
            if here.get(what) != value
        ]
        if differences:
            raise InvalidInput(f"{file} is of no use here: {'; '.join(differences)}")
        return sum(
            _taken_in(Path(place, owner), folder) for owner, folder in _folders(plugins).items()
        )


def _taken_in(source: Path, folder: Path) -> int:
    count = 0
    for one in _files(source):
        target = folder / one.relative_to(source)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(one, target)
            count += 1
    return count


def _folders(plugins: Plugins) -> Mapping[str, Path]:
    folders = {OWN: disk_cache.folder()}
    for executor in plugins.executors:
        folder = executor.cache_folder() if isinstance(executor, FusionExecutor) else None
        if folder is not None:
            folders[executor.name] = folder
    return folders


def _files(folder: Path) -> Iterator[Path]:
    yield from (one for one in sorted(folder.rglob("*")) if one.is_file() and not one.is_symlink())


def _machine() -> dict[str, str]:
    count = torch.cuda.device_count()
    return machine([torch.device("cpu"), *(torch.device("cuda", index) for index in range(count))])
