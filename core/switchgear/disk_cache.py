"""A cache on disk: values that JSON can hold, each in a file of its own, by keys of any length."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

#: Names the folder, in place of `switchgear` in `XDG_CACHE_HOME` or `~/.cache`.
CACHE_VARIABLE = "SWITCHGEAR_CACHE_DIR"


def folder() -> Path:
    """Where the files are. Raises `RuntimeError` where there is no home directory."""
    named = os.environ.get(CACHE_VARIABLE)
    return (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "switchgear"
    )


def load(key: str) -> Any:
    """What was stored by this key; None if nothing can be read."""
    try:
        content = json.loads(_file(key).read_text())
    except (OSError, RuntimeError, ValueError):
        return None
    return content.get("value") if isinstance(content, dict) and content.get("key") == key else None


def store(key: str, value: object) -> None:
    """Keep a value; where the folder cannot be written to, nothing is kept."""
    with contextlib.suppress(OSError, RuntimeError):
        write(_file(key), json.dumps({"key": key, "value": value}))


def write(file: Path, text: str) -> None:
    """Write a file at once or not at all, and the folders that it is in. Raises `OSError`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=file.parent, suffix=".new")
    try:
        with os.fdopen(descriptor, "w") as written:
            written.write(text)
        os.replace(new, file)
    except BaseException:
        os.unlink(new)
        raise


def _file(key: str) -> Path:
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
