"""A new plugin: the example that Switchgear comes with, under another name."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from pathlib import Path

from switchgear_core.errors import InvalidInput

_HERE = Path(__file__).parent
#: In the wheel, and in the repository.
_PLACES = (_HERE / "example", _HERE.parents[2] / "plugins" / "switchgear-example")


def new_plugin(name: str, parent: Path, names_in_use: Collection[str] = ()) -> Path:
    """Write the package `switchgear-NAME` into a folder. Raises `InvalidInput` for a bad name or one that is there."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise InvalidInput(
            f"{name!r} is no name for a plugin: use small letters, digits and underscores, and no word of Python's"
        )
    if name in names_in_use:
        raise InvalidInput(f"{name} is installed already; use another name")
    target = parent / f"switchgear-{name}"
    if target.exists():
        raise InvalidInput(f"{target} is there already")
    source = next(place for place in _PLACES if place.is_dir())
    try:
        for path in sorted(source.rglob("*")):
            if path.is_file() and not {"__pycache__", "dist", "build"}.intersection(path.parts):
                copied = target / _renamed(path.relative_to(source).as_posix(), name)
                copied.parent.mkdir(parents=True, exist_ok=True)
                copied.write_text(
                    _renamed(path.read_text(encoding="utf-8"), name), encoding="utf-8"
                )
    except OSError as error:
        raise InvalidInput(
            f"{target} cannot be written: {error}; run it in another folder"
        ) from error
    return target


def _renamed(text: str, name: str) -> str:
    # the package's name, and the plugin's; not the word
    text = re.sub(r"switchgear([-_])example", rf"switchgear\1{name}", text)
    return re.sub(r"(?<![Aa]n )\bexample\b", name, text)
