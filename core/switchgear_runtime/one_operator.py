"""One operator: a forward under PyTorch's own autograd, with the same backward as the trace.

A node of Switchgear costs more than such an operator.
"""

from __future__ import annotations

from switchgear_core.passes.programs import Training
from switchgear_core.regions.fuse import may_have_regions
from switchgear_core.registry.selection import Selection
from switchgear_runtime.checking import is_never_blamed
from switchgear_runtime.execution import is_pytorch, lines_of


def is_one_operator(training: Training, selection: Selection) -> bool:
    """Check whether the forward is one PyTorch operator, and the backward PyTorch's own formula and kernels.

    Conditions: no plugin adds a rule, a region or an effective pass, eager mode's tensors are saved, and `check` is not
    set.
    """
    rules = [choice.owner for choice in training.joint.choices if choice.owner != "decomposition"]
    forward = lines_of(training.forward)
    if rules != ["derived"] or len(forward) != 1 or selection.check:
        return False
    if not selection.savings.is_eager_unfused:
        return False
    if training.parts.overwritten:  # PyTorch has no formula for the substitute of `copy_`
        return False
    # otherwise there may be a region, which takes long to compile, perhaps in vain
    if may_have_regions(training.parts.backward, selection):
        return False
    lines = (*forward, *lines_of(training.backward))
    if not all(is_pytorch(line) and is_never_blamed(line) for line in lines):
        return False
    programs = training.forward, training.backward
    owner = forward[0].implementation.owner if forward[0].implementation else ""
    label = training.forward.blame[owner][0]
    foreign = {placement.name for placement in selection.passes if placement.owner != label}
    return foreign.isdisjoint(mark.name for one in programs for mark in one.stages[-1].provenance)
