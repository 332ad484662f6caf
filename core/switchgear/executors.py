"""Names for authors of executors, next to `Executor`, `FusionExecutor` and `Table` in `switchgear`.

    from switchgear import executors

    def can_fuse(region: executors.Region) -> bool: ...

Hooks receive a `Registry`, a `Region` and a `RegionContext`, and return an `Implementation` or a `RegionChoice`.
`Choice` and `Saved` occur in `sg.last_choices` and `sg.last_saved`. `Progress` shows the progress of a compilation, and
`surroundings` is the part of a key that names machine and versions.
"""

from switchgear.machine import surroundings
from switchgear.progress import Progress
from switchgear_core.ir.choice import Choice, Implementation, Saved
from switchgear_core.registry.hookspecs import RegionContext
from switchgear_core.registry.region import Region, RegionChoice
from switchgear_core.registry.registry import Registry

__all__ = [
    "Choice",
    "Implementation",
    "Progress",
    "Region",
    "RegionChoice",
    "RegionContext",
    "Registry",
    "Saved",
    "surroundings",
]
