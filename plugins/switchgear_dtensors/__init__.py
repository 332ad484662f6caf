"""Distributed tensors: a `DTensor` is one value of a trace. A part.

PyTorch runs each operator on it, or on its local tensor where that is all that PyTorch would do.
"""

from __future__ import annotations

from switchgear_core.record.handler import Feature
from switchgear_core.record.shell import KNOWN_SHELLS
from switchgear_core.registry.hookspecs import PassPlacement, hookimpl
from switchgear_dtensors.handler import DTensors, shell_of
from switchgear_dtensors.marks import check, join, mark

KNOWN_SHELLS.append(shell_of)


@hookimpl
def switchgear_features() -> list[Feature]:
    """Take calls with DTensors first."""
    return [Feature("dtensors", (DTensors(),))]


@hookimpl
def switchgear_passes() -> list[PassPlacement]:
    """Leave operators on DTensors to PyTorch, and fall back where it lacks one."""
    return [
        PassPlacement("check_dtensors", "before_partition", check),
        PassPlacement("mark_dtensors", "before_claim", mark),
        PassPlacement("join_dtensors", "after_claim", join),
    ]
