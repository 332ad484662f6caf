"""Separate graphs: outputs of a call that share none of eager's nodes have a backward each, though one node has all.

PyTorch lets go of all that the node has saved when the first has run; what the others need is kept until theirs has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from switchgear.compile.pipeline import Training
from switchgear.ir.trace import Trace


class SeparateGraphs:
    """Which outputs of a node have a graph of their own, and which saved values those need."""

    def __init__(self, training: Training) -> None:
        trace, outputs = training.prepared, training.ends[: training.joint.count]
        names = [{p.name} if p is not None and p.requires_grad else set() for p in outputs]
        #: What eager has nodes for, by output, and all that it is computed from.
        self._nodes = [_upstream(one, trace, nodes=True) for one in names]
        self._needs = [_upstream(one, trace, nodes=False) for one in names]
        self._saved = [proxy.name for proxy in training.saved]
        self._needed: dict[tuple[int, ...], tuple[int, ...]] = {}

    def keep(self, ctx: Any, arrived: Sequence[int], saved: Sequence[torch.Tensor]) -> None:
        """After a backward of some outputs keep what those need that share no node with it, nor with one before."""
        gone = tuple(sorted({*arrived, *getattr(ctx, "gone", ())}))
        if gone not in self._needed:
            others = {i for i in range(len(self._nodes)) if self._is_apart(i, gone)}
            names = set().union(*(self._needs[i] for i in others))
            places = [place for place, name in enumerate(self._saved) if name in names]
            self._needed[gone] = tuple(places)
        if self._needed[gone]:
            ctx.kept = {
                place: (saved[place], saved[place]._version) for place in self._needed[gone]
            }
            ctx.gone = gone

    def kept(self, ctx: Any, arrived: Sequence[int]) -> list[Any] | None:
        """The saved values for a backward of other outputs, None where they do not need one; None if it is too late."""
        kept, gone = getattr(ctx, "kept", {}), getattr(ctx, "gone", ())
        if not kept or not all(self._is_apart(i, gone) for i in arrived):
            return None
        if any(tensor._version != version for tensor, version in kept.values()):
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation"
            )
        return [kept.get(place, (None,))[0] for place in range(len(self._saved))]

    def _is_apart(self, output: int, gone: Collection[int]) -> bool:
        nodes = self._nodes[output]
        return bool(nodes) and all(nodes.isdisjoint(self._nodes[i]) for i in gone)


def _upstream(names: set[str], trace: Trace, *, nodes: bool) -> set[str]:
    """What values are computed from: of what eager has nodes for what these give, else all, inputs too."""
    found, wanted = set[str](), {*names}
    for line in reversed(trace.bound_symbols):
        made = {p.name for p in line.outputs if p.requires_grad or not nodes}
        if not wanted.isdisjoint(made):
            wanted.update(p.name for p in line.inputs if p.requires_grad or not nodes)
            found |= made
    return found if nodes else found | wanted
