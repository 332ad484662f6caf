"""Lineages: what a tensor is a view of, what that is a view of, and the calls that make the one from the other."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch

from .aliasing import in_place_twin, viewed_argument
from .composites import leaves_of
from .proxy import TensorProxy
from .recorder import Recorder
from .symbol import BoundSymbol, Symbol, map_proxies
from .tracking import DETACH

#: The names of what a tensor is a view of, and what that is a view of, the root first, and of the tensor itself last.
Lineage = list[str]


class Lineages:
    """The lineages of the tensors that a recorder watched, once it has recorded everything.

    A tensor goes by the name of the value that it stood for when it was first seen, through all writes.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._tracker = recorder.tracker
        program = recorder.program()
        #: Where in the program, and by which leaf, each value was made.
        self._makers = {p.name: made for made in enumerate(leaves_of(program)) for p in made[1].outputs}
        #: The values that are not inside a composite.
        self._visible = {proxy.name for item in program for proxy in item.outputs}

    def of(self, tensor: torch.Tensor) -> Lineage:
        """The lineage of a tensor."""
        names = [self.name_of(tensor)]
        while (viewed := self.viewed(names[-1])) is not None:
            names.append(self._tracker.first_name(viewed.name))
        return names[::-1]

    def name_of(self, tensor: torch.Tensor) -> str:
        """The name that a tensor goes by."""
        return self._tracker.first_name(self._tracker.proxy_of(tensor).name)

    def maker(self, name: str) -> Symbol | None:
        """The leaf that made the value of that name; None for an input or a constant."""
        return self._makers[name][1].symbol if name in self._makers else None

    def viewed(self, name: str) -> TensorProxy | None:
        """What the value of that name was made a view of, if it was."""
        return viewed_argument(self._makers[name][1]) if name in self._makers else None

    def home(self, lineages: Sequence[Lineage], views: Sequence[torch.Tensor]) -> str | None:
        """What tensors that share memory are all to be made views of; None for a tensor that is nobody's view.

        That is their base to eager: the first that they have in common and that is no part of a composite.
        """
        common: Lineage = [names[0] for names in zip(*lineages, strict=False) if len(set(names)) == 1]
        detached = max((i for i, name in enumerate(common) if self.is_detached(name)), default=0)
        own = range(detached, len(common) - 1)
        # one of them may itself have been of another shape before
        ends = {lineage[-1] for lineage in lineages}
        before = {name for name in common if any(self._tracker.first_seen_as(name) is view for view in views)} - ends
        # eager forbids to write to one of several views that an operator makes at once
        bases = (i for i in own if common[i] in self._visible - before or self.makes_several(common[i + 1]))
        base = next(bases, None)
        if base is not None:
            return common[base]
        return common[-1] if common and len(lineages) > 1 else None

    def value(self, name: str, lineages: Sequence[Lineage], views: Sequence[torch.Tensor]) -> TensorProxy | None:
        """What the tensor of that name stands for by now; None if that cannot be told."""
        home = self._tracker.first_seen_as(name)
        final = None if home is None else self._tracker.proxy_of(home)
        if final is not None and self._tracker.first_name(final.name) == name:
            return final
        # by now of another shape, or inside a composite: what the views are made of that are made again after a write
        first = next((proxy for proxy in self._makers[name][1].outputs if proxy.name == name), None)
        found: dict[str, TensorProxy] = {}
        for view, names in zip(views, lineages, strict=True):
            values, place = self._values(view), names.index(name) - len(names)
            value = values[place] if len(values) >= -place else None
            if first is None or value is None or value.layout != first.layout:
                return None
            found[value.name] = value
        return next(iter(found.values())) if len(found) == 1 else None

    def _values(self, tensor: torch.Tensor) -> list[TensorProxy]:
        """What a tensor stands for by now, and what that is a view of, as in a lineage."""
        values = [self._tracker.proxy_of(tensor)]
        while (viewed := self.viewed(values[-1].name)) is not None:
            values.append(viewed)
        return values[::-1]

    def calls(self, lineage: Lineage, home: str, reshaped: Collection[str] = ()) -> Iterator[tuple[int, BoundSymbol]]:
        """The calls that make the last of a lineage from `home`, each with its place in the program.

        `reshaped`: the names of tensors that were given other sizes or strides in place, after that.
        """
        for parent, name in itertools.pairwise(lineage[lineage.index(home) :]):
            position, call = self._makers[name]
            twin = in_place_twin(call.symbol.fn) if name in reshaped else None
            symbol = call.symbol if twin is None else Symbol(str(twin), twin)
            args = map_proxies(functools.partial(_renamed, parent), call.args)
            yield position, replace(call, symbol=symbol, args=args)

    def is_seen(self, name: str) -> bool:
        """Whether the value of that name was made in grad mode."""
        return name not in self._makers or self._makers[name][1].grad_enabled

    def is_detached(self, name: str) -> bool:
        """Whether the value of that name was made by `detach()`."""
        return self.maker(name) == DETACH

    def makes_several(self, name: str) -> bool:
        """Whether the value of that name was made with others at once."""
        return len(self._makers[name][1].outputs) > 1


def _renamed(name: str, proxy: TensorProxy) -> TensorProxy:
    return replace(proxy, name=name)
