"""The packages of Switchgear: by name, and as prefixes of file names."""

from __future__ import annotations

import os

#: The packages of `switchgear-core`, without the executor.
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
