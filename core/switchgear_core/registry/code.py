"""Code: a digest of the files with an executor's code, so that no measurement outlives an edit."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from switchgear_core import own
from switchgear_core.registry.executor import Executor
from switchgear_core.registry.registry import ImplementationEntry

#: Larger files count by size and modification time.
_READ = 1_000_000
#: Packages whose versions are known in another way.
_OTHERS = sys.stdlib_module_names - {"__main__"} | {"torch", *own.PACKAGES}
#: Digests by module, each with the module's spec, which a new import replaces.
_DIGESTS: dict[str, tuple[object, str | None]] = {}


def code_of(executor: Executor, entries: Iterator[ImplementationEntry]) -> str | None:
    """Return a digest of the packages with the code of an executor's class and registrations.

    None if a part is in no file that another process could import: in a script or a notebook.
    """
    functions = [fn for entry in entries for fn in (entry.fn, entry.checker) if fn is not None]
    names = {kind.__module__ for kind in type(executor).__mro__}
    names.update(filter(None, map(_module, functions)))
    names = {name for name in names if name.partition(".")[0] not in _OTHERS}
    digests = [_digest(name) for name in sorted(names)]
    return None if None in digests else " ".join(map(str, digests))


def _module(function: Any) -> str | None:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__module__", None)


def _digest(name: str) -> str | None:
    module = sys.modules.get(name)
    # the files may change while a module is loaded: each is read once
    spec = getattr(module, "__spec__", None)
    if name not in _DIGESTS or _DIGESTS[name][0] is not spec:
        _DIGESTS[name] = spec, _read(name)
    return _DIGESTS[name][1]


def _read(name: str) -> str | None:
    parts = name.split(".")
    packages = [".".join(parts[: count + 1]) for count in range(len(parts))]
    places = [getattr(sys.modules.get(package), "__file__", None) for package in packages]
    place = next(filter(None, places), None)
    if place is None or parts[0] in ("__main__", "__mp_main__"):
        return None
    file = Path(place)
    if not file.exists():  # in an archive
        file = next((parent for parent in file.parents if parent.is_file()), file)
    is_package = file.stem == "__init__"
    files = sorted(file.parent.rglob("*")) if is_package else [file]
    digest = hashlib.sha256()
    for path in files:
        if path.is_file() and "__pycache__" not in path.parts:
            state = path.stat()
            small = state.st_size <= _READ
            content = path.read_bytes() if small else str(state.st_mtime_ns).encode()
            digest.update(f"{path.relative_to(file.parent)} {state.st_size} ".encode() + content)
    return digest.hexdigest()[:16]
