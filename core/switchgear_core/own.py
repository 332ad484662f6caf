"""The packages of Switchgear: by name, and as prefixes of file names."""

from __future__ import annotations

import os
import types

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


def add(package: types.ModuleType) -> None:
    """Count the package of a shipped part as ours: its frames are not the user's."""
    global PACKAGES, FOLDERS
    if package.__name__ not in PACKAGES:
        PACKAGES |= {package.__name__}
        FOLDERS = (*FOLDERS, os.path.dirname(str(package.__file__)) + os.sep)


def is_own(file: str) -> bool:
    """Check whether a file is in one of the packages."""
    return file.startswith(FOLDERS)
