"""Places of Inductor's files: a folder of the current process alone, empty at first.

Another user may have created Inductor's own folder (by default `torchinductor_USER` in the temporary folder), and
Inductor would run the code there. It also uses damaged files there unchecked. `sg.disk_cache` keeps files for other
processes. Only precompiled headers are shared, because they take ten seconds; a digest is checked before use.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch._inductor import codecache as _codecache
from torch._inductor import config
from torch.utils._filelock import FileLock

import switchgear as sg

codecache: Any = _codecache


@contextlib.contextmanager
def files_in_place() -> Iterator[None]:
    """Make Inductor write its files to this process's folder, and share only precompiled headers of the executor."""
    headers = sg.disk_cache.shared("headers")
    folder, locks = codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR
    precompile, is_shared = codecache._precompile_header, config.cpp_cache_precompile_headers
    # TRITON_CACHE_DIR is by default inside the other folder, and Inductor sets it
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(sg.disk_cache.workplace()), "TRITON_CACHE_DIR": None}
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        config.cpp_cache_precompile_headers = is_shared and headers is not None
        if headers is not None:
            codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(headers), str(headers)
            codecache._precompile_header = functools.partial(_precompiled, headers)
        yield
    finally:
        _set(before)
        config.cpp_cache_precompile_headers = is_shared
        codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = folder, locks
        codecache._precompile_header = precompile


def files_of_ours() -> frozenset[Path]:
    """Return the non-empty files in the current process's folder."""
    files = (file for file in sg.disk_cache.workplace().rglob("*") if file.suffix not in (".lock", ".tmp"))
    return frozenset(file for file in files if file.is_file())


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_build: Callable[..., str] = codecache._precompile_header.__wrapped__


@functools.cache
def _precompiled(folder: Path, header: str, *args: Any, **command: Any) -> str:
    """Do the work of Inductor's function, but reuse a precompiled header only if its digest is as noted."""
    with FileLock(str(folder / "lock"), timeout=codecache.LOCK_TIMEOUT):
        before = {*folder.iterdir()}
        source = Path(_build(header, *args, **command))
        note, digests = f"inductor header {source.name}", _digests(source)
        if not before.isdisjoint(digests) and sg.disk_cache.load(note) != [*digests.values()]:
            for file in digests:
                file.unlink()
            digests = _digests(Path(_build(header, *args, **command)))
        sg.disk_cache.store(note, [*digests.values()])
    return str(source)


def _digests(source: Path) -> dict[Path, str]:
    """Return the digests of a header and of its precompiled files."""
    files = [source, *sorted(source.parent.glob(f"{source.name}.?ch"))]
    return {file: sg.disk_cache.digest_of(file.read_bytes()) for file in files}
