"""The packages of Switchgear: by name, and as prefixes of file names."""

from __future__ import annotations

import os

#: The packages of `switchgear-core`, without the executor; `add` adds those of parts.
PACKAGES = frozenset(
    {
        *("switchgear", "switchgear_core", "switchgear_frontend", "switchgear_runtime"),
        "switchgear_tools",
    }
)
#: The common prefix of their folders, also of plugins whose names begin alike.
PREFIX = os.path.join(os.path.dirname(os.path.dirname(__file__)), "switchgear")
#: The folders of the packages, each with a separator at its end.
FOLDERS = tuple(os.path.join(os.path.dirname(PREFIX), name) + os.sep for name in sorted(PACKAGES))


def add(name: str, file: str) -> None:
    """Count the package of a shipped part as ours: its frames are not the user's.

    Args:
        name: a module of the package.
        file: the file of that module.
    """
    global PACKAGES, FOLDERS
    package, _, inner = name.partition(".")
    if package in PACKAGES:
        return
    PACKAGES |= {package}
    folder = os.path.dirname(file)
    for _ in inner.split(".")[1:]:
        folder = os.path.dirname(folder)
    FOLDERS = (*FOLDERS, folder + os.sep)


def is_own(file: str) -> bool:
    """Check whether a file is in one of the packages."""
    return file.startswith(FOLDERS)
