"""Names for passes over a trace: where a pass runs, the lines it edits, patterns, aliases and writes.

from switchgear import passes

@sg.hookimpl
def switchgear_passes():
    return [passes.PassPlacement("name", "before_grad", function)]
"""

from switchgear.tags import tag_names, tagged
from switchgear_core.ir.aliasing import aliased_argument, storages, written_arguments
from switchgear_core.ir.lines import Lines, Match, argument, composite, leaf_of
from switchgear_core.ir.proxy import NumberProxy
from switchgear_core.ir.symbol import OFFLOAD, RECOMPUTE, SAVE
from switchgear_core.registry.hookspecs import PassContext, PassPlacement

__all__ = [
    "OFFLOAD",
    "RECOMPUTE",
    "SAVE",
    "Lines",
    "Match",
    "NumberProxy",
    "PassContext",
    "PassPlacement",
    "aliased_argument",
    "argument",
    "composite",
    "leaf_of",
    "storages",
    "tag_names",
    "tagged",
    "written_arguments",
]
