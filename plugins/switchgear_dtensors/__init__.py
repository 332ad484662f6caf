"""Distributed tensors: a `DTensor` is one value of a trace, and PyTorch runs each operator on it. A part."""

from __future__ import annotations

from switchgear_core.record.handler import Feature
from switchgear_core.record.shell import KNOWN_SHELLS
from switchgear_core.registry.hookspecs import PassPlacement, hookimpl
from switchgear_dtensors.handler import DTensors, shell_of
from switchgear_dtensors.marks import mark

KNOWN_SHELLS.append(shell_of)


@hookimpl
def switchgear_features() -> list[Feature]:
    """Take calls with DTensors first."""
    return [Feature("dtensors", (DTensors(),))]


@hookimpl
def switchgear_passes() -> list[PassPlacement]:
    """Keep executors other than PyTorch's from operators on DTensors."""
    return [PassPlacement("mark_dtensors", "before_claim", mark)]
