"""The requirement of the core: from a clone the folder next to this file, in a release the same version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class RequiresCore(MetadataHookInterface):
    """`SWITCHGEAR_RELEASE=1` makes it a release, which an index takes."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the core to the dependencies."""
        core = Path(self.root, "core")
        is_clone = (core / "pyproject.toml").is_file() and not os.environ.get("SWITCHGEAR_RELEASE")
        pinned = f"switchgear-core=={metadata['version']}"
        requirement = f"switchgear-core @ {core.as_uri()}" if is_clone else pinned
        # highspy 1.16 prints a banner wherever a solver is made
        metadata["dependencies"] = [requirement, "highspy>=1.10,<1.16"]
