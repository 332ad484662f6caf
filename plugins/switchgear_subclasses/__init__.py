"""Tensor subclasses: their code runs during the capture, the operators on inner tensors are recorded. A part."""

from __future__ import annotations

from switchgear_core.record.handler import Feature
from switchgear_core.record.shell import KNOWN_SHELLS
from switchgear_core.registry.hookspecs import hookimpl
from switchgear_subclasses.handler import Subclasses
from switchgear_subclasses.shells import has_shell, shell_of

KNOWN_SHELLS.append(lambda value: shell_of(value) if has_shell(value) else None)


@hookimpl
def switchgear_features() -> list[Feature]:
    """Take calls with tensors of subclasses first."""
    return [Feature("subclasses", (Subclasses(),))]
