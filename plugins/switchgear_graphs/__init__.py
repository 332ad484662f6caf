"""Graphs for other tools: joint traces with a signature, `torch.fx` and `torch.export`, files, edits, the grad pass."""

import sys

from switchgear_core import own
from switchgear_graphs.exporting import export
from switchgear_graphs.files import load_trace, save_trace
from switchgear_graphs.functions import with_functions
from switchgear_graphs.gradients import differentiate
from switchgear_graphs.graph_modules import from_fx, to_fx
from switchgear_graphs.joint_graphs import Graphs, joint
from switchgear_graphs.overriding import override
from switchgear_graphs.pickling import pickled
from switchgear_graphs.signature import Signature

__all__ = [
    "Graphs",
    "Signature",
    "differentiate",
    "export",
    "from_fx",
    "joint",
    "load_trace",
    "override",
    "pickled",
    "save_trace",
    "to_fx",
    "with_functions",
]

own.add(sys.modules[__name__])
