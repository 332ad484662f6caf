"""Folders of the repository that `switchgear-core` takes in: the executor `torch`, and the template of plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: By the path inside the distribution. A source distribution has them there already.
FOLDERS = {
    "switchgear_torch": "../executors/switchgear_torch",
    "switchgear_tools/testing/example": "../plugins/switchgear-example",
}


class FromTheRepository(BuildHookInterface[Any]):
    """Adds them; an editable install finds them in the repository, and copies nothing."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folders to be copied."""
        for inside, outside in FOLDERS.items():
            folder = Path(self.root, outside)
            if version != "editable" and folder.is_dir():
                build_data["force_include"][str(folder)] = inside
