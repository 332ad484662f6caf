"""What comes out of a captured function: what it returns, and what it leaves in its inputs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import torch_internals as internals
from .aliasing import viewed_argument
from .composites import leaves_of
from .custom_functions import HISTORY
from .errors import Unsupported
from .gradients_inside import NEW_LEAF
from .proxy import TensorProxy
from .recorder import RecordedInput, Recorder
from .signature import check_returned
from .structure import Structure, flatten
from .symbol import BoundSymbol, Symbol, map_proxies
from .tracking import history_of, is_spoiled, same_history

_AS_STRIDED = Symbol("aten.as_strided.default", torch.ops.aten.as_strided.default)


@dataclass(frozen=True, slots=True)
class Mutation:
    """An input whose data the function wrote: the trace's output at `output` is copied back into it.

    `tracked`: autograd saw the write, so the copy is made under it.
    """

    input: int
    output: int
    tracked: bool


@dataclass(frozen=True, slots=True)
class Returned:
    """A leaf of the return value: an output or input of the trace by index, a view by name, or a Python value."""

    kind: str
    place: Any = None
    value: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """How a call is finished once its trace has run.

    In this order: `metadata` holds in-place calls that change sizes or strides of inputs; `mutations` say what is
    copied into inputs; `views` are made from inputs and outputs, outside of autograd's node, so that they are views
    of these as eager's are. `roots` names what these start from: "input" or "output", and the index there.
    `switched_on` are the inputs that require grad from the call on.
    """

    proxies: tuple[TensorProxy, ...]
    returned: tuple[Returned, ...]
    spec: Structure
    metadata: tuple[BoundSymbol, ...]
    mutations: tuple[Mutation, ...]
    roots: tuple[tuple[str, str, int], ...]
    views: tuple[BoundSymbol, ...]
    switched_on: tuple[int, ...] = ()


def outputs_of(recorder: Recorder, result: Any, *, views: bool) -> Outputs:
    """What came out of the function that `recorder` watched, its return value among it.

    Without `views` every tensor returned that is no input itself is an output of the trace.
    """
    leaves, spec = flatten(result, objects=True)
    collector = _Collector(recorder, leaves, views)
    returned = tuple([collector.returned(leaf) for leaf in leaves])
    mutations = tuple(collector.mutations())
    roots = tuple((name, *place) for name, place in collector.roots.items())
    calls = tuple(collector.views[position] for position in sorted(collector.views))
    proxies = tuple(collector.proxies.values())
    metadata, switched_on = tuple(recorder.metadata_calls), tuple(recorder.switched_on)
    return Outputs(proxies, returned, spec, metadata, mutations, roots, calls, switched_on)


class _Collector:
    """Tells apart, among what comes out, values of the trace, inputs, and views of either.

    A tensor goes by the name of the value that it stood for when it was first seen, through all writes. The lineage
    of a view is the names of what it is a view of, and what that is a view of, the root first.
    """

    def __init__(self, recorder: Recorder, leaves: list[Any], views: bool) -> None:
        self.recorder = recorder
        self.tracker = recorder.tracker
        self._apart = views
        self.proxies: dict[str, TensorProxy] = {}
        self.roots: dict[str, tuple[str, int]] = {}
        self.views: dict[int, BoundSymbol] = {}
        made = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not recorder.input_of(leaf)}
        self._sharing: dict[int, list[torch.Tensor]] = {}
        for tensor in made.values():
            self.tracker.reconcile(tensor)
            self._sharing.setdefault(internals.storage_key(tensor), []).append(tensor)
        self._inputs: dict[int, int] = {}
        self._parts: dict[str, int] = {}
        for index, found in enumerate(recorder.inputs):
            self.tracker.reconcile(found.wrapper)
            if found.is_view:
                self._parts[self.tracker.first_name(self.tracker.proxy_of(found.wrapper).name)] = index
            else:
                self._inputs[internals.storage_key(found.wrapper)] = index
        self._reshaped = {call.inputs[0].name for call in recorder.metadata_calls}

    @functools.cached_property
    def _makers(self) -> dict[str, tuple[int, BoundSymbol]]:
        """Where in the program, and by which leaf, each value was made."""
        leaves = enumerate(leaves_of(self.recorder.program()))
        return {proxy.name: (position, leaf) for position, leaf in leaves for proxy in leaf.outputs}

    @functools.cached_property
    def _visible(self) -> set[str]:
        """The values that are not inside a composite."""
        return {proxy.name for item in self.recorder.program() for proxy in item.outputs}

    def mutations(self) -> Iterator[Mutation]:
        """The inputs that the function wrote to, their new values made outputs."""
        for index, found in enumerate(self.recorder.inputs):
            first, final = found.proxy, self.tracker.proxy_of(found.wrapper)
            if first.name in self._reshaped:
                self.roots[first.name] = ("input", index)
            self._refuse_other_memory(found)
            if found.is_view:
                continue
            kind = final.shape, final.dtype, final.device
            if first.name not in self._reshaped and kind != (first.shape, first.dtype, first.device):
                raise Unsupported(
                    f"the function gives {first.name} another shape, dtype or device; return a new tensor"
                )
            root = final
            while root is not first and (viewed := self._viewed(root.name)) is not None:
                root = viewed
            if root.name != first.name:
                tracked = not same_history(history_of(found.wrapper), found.history)
                yield Mutation(index, self._output(final), tracked)

    def _refuse_other_memory(self, found: RecordedInput) -> None:
        wrapper = found.wrapper
        if internals.storage_replaced(wrapper) or internals.storage_key(wrapper) != found.storage:
            raise Unsupported(
                f"the function gives {found.proxy.name} other memory (set_(), or an assignment to .data); write the "
                "values into it with copy_() under torch.no_grad(), or call it outside the jitted function"
            )
        if internals.storage_resized(wrapper):
            raise Unsupported(
                f"the function resizes the storage of {found.proxy.name}; do so outside the jitted function"
            )

    def returned(self, leaf: Any) -> Returned:
        """Where a leaf of the return value is to be found after a call."""
        if not isinstance(leaf, torch.Tensor):
            check_returned(leaf)
            return Returned("value", value=leaf)
        itself = self.recorder.input_of(leaf)
        if itself is not None:
            return Returned("input", self.recorder.inputs.index(itself))
        if is_spoiled(leaf):
            raise Unsupported(
                "the function returns a view, made under no_grad or with others at once, whose base was written to "
                "since; autograd lets nobody use such a tensor. Return a clone, made before the write"
            )
        if not self._apart:
            return Returned("output", self._output(self.tracker.proxy_of(leaf)))
        key = internals.storage_key(leaf)
        if key in self._inputs:
            return self._view_of_input(leaf, self._inputs[key])
        lineage, lineages = self._lineage(leaf), list(map(self._lineage, self._sharing[key]))
        common = [names[0] for names in zip(*lineages, strict=False) if len(set(names)) == 1]
        nearest = self._nearest(common, self._sharing[key])
        if nearest < 0 and len(lineages) == 1:
            return Returned("output", self._output(self.tracker.proxy_of(leaf)))
        common = common[: nearest + 1] if nearest >= 0 else common
        value = self._value(common[-1], self._sharing[key]) if common else None
        if value is None:
            raise Unsupported(
                "the function returns several tensors that share memory, in a way that cannot be told; "
                "return clones of them"
            )
        return self._replayed(lineage, common[-1], "output", self._output(value))

    def _nearest(self, lineage: list[str], views: list[torch.Tensor]) -> int:
        """Where above the end of a lineage the nearest base is that is a tensor to eager too; -1 if there is none."""
        detached = max((i for i, name in enumerate(lineage) if self._is_detached(name)), default=0)
        own = range(detached, len(lineage) - 1)
        # one of them may itself have been of another shape before
        ends = {self._lineage(view)[-1] for view in views}
        before = {name for name in lineage if any(self.tracker.first_seen_as(name) is view for view in views)} - ends
        nearest = max((i for i in own if lineage[i] in self._visible - before), default=-1)
        # eager forbids to write to one of several views that an operator makes at once
        parts = (i for i in own if len(self._made_by(lineage[i + 1]).outputs) > 1)
        return min(nearest, next(parts, nearest)) if nearest >= 0 else next(parts, -1)

    def _is_detached(self, name: str) -> bool:
        return name in self._makers and self._made_by(name).symbol.fn is torch.ops.aten.detach.default

    def _value(self, name: str, views: list[torch.Tensor]) -> TensorProxy | None:
        """What the tensor first seen by that name stands for by now; None if that cannot be told."""
        home = self.tracker.first_seen_as(name)
        final = None if home is None else self.tracker.proxy_of(home)
        if final is not None and self.tracker.first_name(final.name) == name:
            return final
        if any(self.tracker.proxy_of(view).name != self._lineage(view)[-1] for view in views):
            return None
        return next((proxy for proxy in self._made_by(name).outputs if proxy.name == name), None)

    def _made_by(self, name: str) -> BoundSymbol:
        return self._makers[name][1]

    def _output(self, proxy: TensorProxy) -> int:
        self.proxies.setdefault(proxy.name, proxy)
        return list(self.proxies).index(proxy.name)

    def _viewed(self, name: str) -> TensorProxy | None:
        """What the value of that name was made a view of, if it was."""
        return viewed_argument(self._made_by(name)) if name in self._makers else None

    def _lineage(self, tensor: torch.Tensor) -> list[str]:
        names = [self._first_name(self.tracker.proxy_of(tensor).name)]
        while (viewed := self._viewed(names[-1])) is not None:
            names.append(self._first_name(viewed.name))
        return names[::-1]

    def _first_name(self, name: str) -> str:
        """The name that a tensor goes by; what an `autograd.Function` gives is another tensor than what it made."""
        history = name in self._makers and self._made_by(name).symbol == HISTORY
        return name if history else self.tracker.first_name(name)

    def _view_of_input(self, leaf: torch.Tensor, index: int) -> Returned:
        found, lineage = self.recorder.inputs[index], self._lineage(leaf)
        if lineage[0] in self._makers and self._made_by(lineage[0]).symbol == NEW_LEAF:
            raise Unsupported(
                f"the function returns a tensor in the memory of {found.proxy.name} that was told inside to require "
                "grad (requires_grad_()); call it on what is returned, outside"
            )
        for part in reversed(lineage):
            if part in self._parts and self.recorder.inputs[self._parts[part]].proxy.name not in self._reshaped:
                return self._replayed(lineage, part, "input", self._parts[part])
        if found.proxy.name in lineage and found.proxy.name not in self._reshaped:
            return self._replayed(lineage, found.proxy.name, "input", index)
        home, now = self.tracker.proxy_of(found.wrapper), self.tracker.proxy_of(leaf)
        if lineage[0] in self._makers and self._made_by(lineage[0]).symbol == HISTORY:
            return Returned("output", self._output(now))
        if (now.dtype, now.is_conj, now.is_neg) != (home.dtype, home.is_conj, home.is_neg):
            raise Unsupported(
                f"the function returns a view of {found.proxy.name} as another dtype, in a way that cannot be "
                "followed; return a clone of it"
            )
        self.roots[found.proxy.name] = ("input", index)
        made = replace(now, name=self.recorder.names.fresh())
        layout = (now.shape, now.stride, now.storage_offset)
        call = BoundSymbol(_AS_STRIDED, (found.proxy, *layout), {}, made, grad_enabled=now.requires_grad)
        self.views[-1 - len(self.views)] = call
        return Returned("view", made.name)

    def _replayed(self, lineage: list[str], home: str, kind: str, index: int) -> Returned:
        """The last of a lineage, to be made from `home` by the calls that made it."""
        if lineage[-1] == home:
            return Returned(kind, index)
        self.roots[home] = (kind, index)
        for parent, name in itertools.pairwise(lineage[lineage.index(home) :]):
            position, call = self._makers[name]
            self.views[position] = replace(call, args=map_proxies(functools.partial(_renamed, parent), call.args))
        return Returned("view", lineage[-1])


def _renamed(name: str, proxy: TensorProxy) -> TensorProxy:
    return replace(proxy, name=name)
