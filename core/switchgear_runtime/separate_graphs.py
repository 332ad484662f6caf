"""Separate graphs: outputs of a call without a shared eager node have separate backwards, despite one common node.

PyTorch frees all saved tensors of the node after the first backward. Tensors for other outputs are kept until their
backward.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from switchgear_core.ir.trace import Trace
from switchgear_core.passes.programs import Training


class SeparateGraphs:
    """Outputs of a node with graphs of their own, and the saved tensors of those graphs."""

    def __init__(self, training: Training) -> None:
        trace, outputs = training.prepared, training.ends[: training.joint.count]
        names = [{p.name} if p is not None and p.requires_grad else set() for p in outputs]
        #: By output, the values with eager nodes upstream, and all values upstream.
        self._nodes = [_upstream(output, trace, nodes=True) for output in names]
        self._needs = [_upstream(output, trace, nodes=False) for output in names]
        self._saved = [proxy.name for proxy in training.saved]
        self._needed: dict[tuple[int, ...], tuple[int, ...]] = {}

    def keep(self, ctx: Any, arrived: Sequence[int], saved: Sequence[torch.Tensor]) -> None:
        """Keep, after a backward of some outputs, the saved tensors of outputs without a common node with past
        backwards."""
        past = tuple(sorted({*arrived, *getattr(ctx, "past_outputs", ())}))
        if past not in self._needed:
            others = {i for i in range(len(self._nodes)) if self._is_apart(i, past)}
            names = set().union(*(self._needs[i] for i in others))
            places = [place for place, name in enumerate(self._saved) if name in names]
            self._needed[past] = tuple(places)
        if self._needed[past]:
            ctx.separate_saved = {
                place: (saved[place], saved[place]._version) for place in self._needed[past]
            }
            ctx.past_outputs = past

    def saved_for(self, ctx: Any, arrived: Sequence[int]) -> list[Any] | None:
        """Return the saved tensors for a backward of other outputs, None for unneeded tensors; None if too late."""
        saved, past = getattr(ctx, "separate_saved", {}), getattr(ctx, "past_outputs", ())
        if not saved or not all(self._is_apart(i, past) for i in arrived):
            return None
        if any(tensor._version != version for tensor, version in saved.values()):
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation"
            )
        return [saved.get(place, (None,))[0] for place in range(len(self._saved))]

    def _is_apart(self, output: int, past: Collection[int]) -> bool:
        nodes = self._nodes[output]
        return bool(nodes) and all(nodes.isdisjoint(self._nodes[i]) for i in past)


def _upstream(names: set[str], trace: Trace, *, nodes: bool) -> set[str]:
    """Return the values upstream of `names`: with `nodes`, values of eager nodes alone, else all, inputs too."""
    result, front = set[str](), {*names}
    for line in reversed(trace.bound_symbols):
        outputs = {p.name for p in line.outputs if p.requires_grad or not nodes}
        if not front.isdisjoint(outputs):
            front.update(p.name for p in line.inputs if p.requires_grad or not nodes)
            result |= outputs
    return result if nodes else result | front
