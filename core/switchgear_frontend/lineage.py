"""Lineages: the chain of bases of a tensor, and the calls that create each view from its base."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from switchgear_core.ir.aliasing import viewed_argument
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, map_proxies
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.tracker import DETACH

#: The bases of a tensor, the root first, and the tensor itself last.
Lineage = list[TensorProxy]


class Lineages:
    """The lineages of the tensors of a recorder, after recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._tracker = recorder.tracker
        program = recorder.tape.frames[0].lines
        #: The place in the program, and the leaf, that made each value.
        self._makers = {
            p.name: maker for maker in enumerate(leaves_of(program)) for p in maker[1].outputs
        }
        #: The values outside composites.
        self._visible = {proxy.name for item in program for proxy in item.outputs}

    def of(self, tensor: torch.Tensor) -> Lineage:
        """Return the lineage of a tensor, with the current value of each base."""
        lineage = [self._tracker.proxy_of(tensor)]
        while lineage[-1].name in self._makers:
            viewed = viewed_argument(self._makers[lineage[-1].name][1])
            if viewed is None:
                break
            lineage.append(viewed)
        return lineage[::-1]

    def common_root(self, lineages: Sequence[Lineage]) -> TensorProxy | None:
        """Return the common base of tensors with shared memory: their base in eager, if it is outside composites."""
        common: list[TensorProxy] = [
            values[0]
            for values in zip(*lineages, strict=False)
            if len({value.name for value in values}) == 1
        ]
        detached = max(
            (place for place, value in enumerate(common) if self.is_detached(value)), default=0
        )
        for place in range(detached, len(common)):
            inner = place + 1 < len(common) and self._makes_several(common[place + 1])
            # eager forbids writing to one of several views from a single operator
            if common[place].name in self._visible or inner:
                return common[place]
        return common[-1] if common else None

    def calls(self, lineage: Lineage, root: TensorProxy) -> Iterator[tuple[int, BoundSymbol]]:
        """Yield the calls that make the last value of a lineage from `root`, each with its place in the program."""
        start = [value.name for value in lineage].index(root.name)
        for parent, value in itertools.pairwise(lineage[start:]):
            position, call = self._makers[value.name]
            yield (
                position,
                replace(
                    call, args=map_proxies(functools.partial(_renamed, parent.name), call.args)
                ),
            )

    def is_seen(self, value: TensorProxy) -> bool:
        """Check whether a value was made in grad mode."""
        return value.name not in self._makers or self._makers[value.name][1].grad_enabled

    def is_detached(self, value: TensorProxy) -> bool:
        """Check whether a value was made by `detach()`."""
        return value.name in self._makers and self._makers[value.name][1].symbol == DETACH

    def _makes_several(self, value: TensorProxy) -> bool:
        return len(self._makers[value.name][1].outputs) > 1


def _renamed(name: str, proxy: TensorProxy) -> TensorProxy:
    return replace(proxy, name=name)
