"""What comes out of a captured function: what it returns, and what it leaves in its inputs."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from . import torch_internals as internals
from .custom_functions import HISTORY
from .errors import Unsupported
from .gradients_inside import NEW_LEAF
from .lineage import Lineage, Lineages
from .proxy import TensorProxy
from .recorder import RecordedInput, Recorder
from .shared_memory import base_of
from .signature import check_returned
from .sizes import settled
from .structure import Structure, flatten
from .symbol import BoundSymbol, Symbol
from .tracking import DETACH, history_of, is_spoiled, same_history
from .writes import NEW_VERSION

_ALIAS = Symbol("aten.alias.default", torch.ops.aten.alias.default)
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

    In this order: `metadata` holds in-place calls that change sizes, strides or versions of inputs; `mutations` say
    what is copied into inputs; `views` are made from inputs and outputs, outside of autograd's node, so that they are
    views of these as eager's are. `roots` names what these start from: "input" or "output", and the index there.
    """

    proxies: tuple[TensorProxy, ...]
    returned: tuple[Returned, ...]
    spec: Structure
    metadata: tuple[BoundSymbol, ...]
    mutations: tuple[Mutation, ...]
    roots: tuple[tuple[str, str, int], ...]
    views: tuple[BoundSymbol, ...]


def reshaped_inputs(outputs: Outputs, inputs: Sequence[TensorProxy]) -> list[int]:
    """Which inputs are given other sizes or strides: they get a new version, as does what shares their counter."""
    names = {call.inputs[0].name for call in outputs.metadata}
    return [index for index, proxy in enumerate(inputs) if proxy.name in names]


def outputs_of(recorder: Recorder, result: Any, *, views: bool) -> Outputs:
    """What came out of the function that `recorder` watched, its return value among it.

    Without `views` every tensor returned that is no input itself is an output of the trace.
    """
    leaves, spec = flatten(result, objects=True)
    collector = _Collector(recorder, leaves, views)
    returned = tuple([collector.returned(leaf) for leaf in leaves])
    mutations = tuple(collector.mutations())
    roots = tuple((name, *place) for name, place in collector.roots.items())
    calls = (*collector.made, *[collector.views[position] for position in sorted(collector.views)])
    proxies = tuple(collector.proxies.values())
    return Outputs(proxies, returned, spec, tuple(recorder.metadata_calls), mutations, roots, calls)


@dataclass(frozen=True, slots=True)
class _Memory:
    """Tensors that come out in one memory, no input's: their lineages by id, and what they are made from.

    `is_view`: to eager that is itself a view, of a tensor inside a composite, and so the base of none. `reshaped`:
    names of tensors, no views, that were given other sizes or strides in place, after that.
    """

    lineages: dict[int, Lineage]
    home: str
    output: int
    is_view: bool
    reshaped: Collection[str]


class _Collector:
    """Tells apart, among what comes out, values of the trace, inputs, and views of either."""

    def __init__(self, recorder: Recorder, leaves: list[Any], views: bool) -> None:
        self.recorder = recorder
        self.tracker = recorder.tracker
        self._apart = views
        self.proxies: dict[str, TensorProxy] = {}
        self.roots: dict[str, tuple[str, int]] = {}
        #: Calls that make what is returned: the function's own by their place in it, and others.
        self.views: dict[int, BoundSymbol] = {}
        self.made: list[BoundSymbol] = []
        made = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not recorder.input_of(leaf)}
        self._sharing: dict[int, list[torch.Tensor]] = {}
        for tensor in made.values():
            self.tracker.reconcile(tensor)
            self._sharing.setdefault(internals.storage_key(tensor), []).append(tensor)
        self._memories: dict[int, _Memory | None] = {}
        #: What is made by its place in a memory and not by the calls that made it, by the id of the tensor returned.
        self._placed: dict[int, Returned] = {}
        self._inputs: dict[int, int] = {}
        for index, found in enumerate(recorder.inputs):
            self.tracker.reconcile(found.wrapper)
            if not found.is_view:
                self._inputs[internals.storage_key(found.wrapper)] = index
        self._touched = {call.inputs[0].name for call in recorder.metadata_calls}
        self._reshaped = {call.inputs[0].name for call in recorder.metadata_calls if call.symbol != NEW_VERSION}

    @functools.cached_property
    def _lineages(self) -> Lineages:
        return Lineages(self.recorder)

    def mutations(self) -> Iterator[Mutation]:
        """The inputs that the function wrote to, their new values made outputs."""
        for index, found in enumerate(self.recorder.inputs):
            first, final = found.proxy, self.tracker.proxy_of(found.wrapper)
            if first.name in self._touched:
                self.roots[first.name] = ("input", index)
            self._refuse_other_memory(found)
            if found.is_view:
                continue
            kind = final.shape, final.dtype, final.device
            if first.name not in self._reshaped and kind != (first.shape, first.dtype, first.device):
                raise Unsupported(
                    f"the function gives {first.name} another shape, dtype or device; return a new tensor"
                )
            if self._is_written(found):
                tracked = not same_history(history_of(found.wrapper), found.history)
                if tracked and first.name in self._reshaped and base_of(found.tensor).dtype != first.dtype:
                    raise Unsupported(
                        f"the function writes to {first.name}, a view of a tensor of another dtype, and gives it "
                        "other sizes or strides in place, which autograd cannot follow; make a view in their place"
                    )
                yield Mutation(index, self._output(final), tracked)

    def _is_written(self, found: RecordedInput) -> bool:
        first, root = found.proxy, self.tracker.proxy_of(found.wrapper)
        while root is not first and (viewed := self._lineages.viewed(root.name)) is not None:
            root = viewed
        return root.name != first.name

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
            leaf = settled(leaf)
            if not isinstance(leaf, torch.SymInt | torch.SymFloat):
                check_returned(leaf)
            return Returned("value", value=leaf)
        itself = self.recorder.input_of(leaf)
        if itself is not None:
            return Returned("input", self.recorder.inputs.index(itself))
        self.tracker.refuse_outdated(leaf)
        if is_spoiled(leaf):
            raise Unsupported(
                "the function returns a view, made under no_grad or with others at once, whose base was written to "
                "since; autograd lets nobody use such a tensor. Return a clone, made before the write"
            )
        key = internals.storage_key(leaf)
        if self._apart and key in self._inputs:
            return self._view_of_input(leaf, self._inputs[key])
        memory = self._memory(key) if self._apart else None
        if memory is None:
            return Returned("output", self._output(self.tracker.proxy_of(leaf)))
        if memory.is_view and memory.lineages[id(leaf)][-1] == memory.home:
            if id(leaf) not in self._placed:
                self._placed[id(leaf)] = self._alias(memory)
            return self._placed[id(leaf)]
        return self._replayed(memory.lineages[id(leaf)], memory.home, "output", memory.output, memory.reshaped)

    def _alias(self, memory: _Memory) -> Returned:
        self.roots[memory.home] = ("output", memory.output)
        value = list(self.proxies.values())[memory.output]
        return Returned(
            "view", self._made(_ALIAS, (replace(value, name=memory.home),), value, value.requires_grad).name
        )

    def _memory(self, key: int) -> _Memory | None:
        """Where what shares a memory is made from; None for one tensor that is a view of nothing."""
        if key not in self._memories:
            self._memories[key] = self._found_memory(self._sharing[key])
        return self._memories[key]

    def _found_memory(self, views: list[torch.Tensor]) -> _Memory | None:
        lineages = [self._lineages.of(view) for view in views]
        home = self._lineages.home(lineages, views)
        if home is None and len(views) == 1:
            return None
        value = None if home is None else self._lineages.value(home, lineages, views)
        if home is None or value is None:
            raise Unsupported(
                "the function returns several tensors that share memory, in a way that cannot be told; "
                "return clones of them"
            )
        by_id = {id(view): lineage for view, lineage in zip(views, lineages, strict=True)}
        is_view = any(view._is_view() and lineage[-1] == home for view, lineage in zip(views, lineages, strict=True))
        # a view that was reshaped is another view of the same base
        reshaped = {
            name
            for view, lineage in zip(views, lineages, strict=True)
            if not view._is_view()
            for name in self._renamed(view, lineage)
        }
        return _Memory(by_id, home, self._output(value), is_view, reshaped)

    def _renamed(self, view: torch.Tensor, lineage: Lineage) -> Lineage:
        """The names in a tensor's lineage that it goes by itself since its sizes or strides were changed in place."""
        own = (place for place, name in enumerate(lineage) if self.tracker.first_seen_as(name) is view)
        return lineage[next(own, len(lineage)) + 1 :]

    def _output(self, proxy: TensorProxy) -> int:
        self.proxies.setdefault(proxy.name, proxy)
        return list(self.proxies).index(proxy.name)

    def _view_of_input(self, leaf: torch.Tensor, index: int) -> Returned:
        found, lineage = self.recorder.inputs[index], self._lineages.of(leaf)
        root = self._lineages.maker(lineage[0])
        if root == NEW_LEAF:
            raise Unsupported(
                f"the function returns a tensor in the memory of {found.proxy.name} that was told inside to require "
                "grad (requires_grad_()); call it on what is returned, outside"
            )
        for place, name in reversed([*enumerate(lineage)]):
            nearest = self._input_known_as(name)
            if nearest is not None:
                found, lineage, index = nearest, lineage[place:], self.recorder.inputs.index(nearest)
                if found.proxy.name not in self._reshaped:
                    return self._replayed(lineage, name, "input", index)
                break
        home, now = self.tracker.proxy_of(found.wrapper), self.tracker.proxy_of(leaf)
        if root == HISTORY:
            if self._is_written(found) or found.proxy.name in self._touched:
                raise Unsupported(
                    f"the function returns a view of {found.proxy.name}, made by an autograd.Function, and writes to "
                    f"{found.proxy.name} or reshapes it in place: the view's memory would not be the input's; return a "
                    "clone of it"
                )
            made_of = self._lineages.value(lineage[0], [lineage], [leaf])
            if made_of is None:
                return Returned("output", self._output(now))
            return self._replayed(lineage, lineage[0], "output", self._output(made_of))
        if (now.dtype, now.is_conj, now.is_neg) != (home.dtype, home.is_conj, home.is_neg):
            raise Unsupported(
                f"the function returns a view of {found.proxy.name} as another dtype, in a way that cannot be "
                "followed; return a clone of it"
            )
        if self._is_written(found) and home.storage_offset != found.proxy.storage_offset:
            raise Unsupported(
                f"the function writes to {found.proxy.name}, which begins inside its memory, gives it other sizes in "
                "place and returns a view of it; return a clone of it"
            )
        if any(self._lineages.is_detached(name) for name in lineage[1:-1]):
            raise Unsupported(
                f"the function gives {found.proxy.name} other sizes or strides in place and returns a view of what "
                "detach() made of it; return a clone of it"
            )
        if len(lineage) > 1 and self._lineages.makes_several(lineage[-1]):
            raise Unsupported(
                f"the function gives {found.proxy.name} other sizes or strides in place and returns one of several "
                "views made of it at once, as by unbind(); make it with select() or narrow()"
            )
        self.roots[found.proxy.name] = ("input", index)
        if id(leaf) not in self._placed:
            layout = (now.shape, now.stride, now.storage_offset)
            seen = all(map(self._lineages.is_seen, lineage[1:]))
            made = self._made(_AS_STRIDED, (found.proxy, *layout), now, seen)
            if self._lineages.is_detached(lineage[-1]) and not leaf._is_view():
                made = self._made(DETACH, (made,), now, seen)
            self._placed[id(leaf)] = Returned("view", made.name)
        return self._placed[id(leaf)]

    def _input_known_as(self, name: str) -> RecordedInput | None:
        """The input that goes by that name, or did before it was reshaped."""
        seen = self.tracker.first_seen_as(name)
        return None if seen is None else self.recorder.input_of(seen)

    def _made(self, symbol: Symbol, args: tuple[Any, ...], like: TensorProxy, seen: bool) -> TensorProxy:
        """What a call that the function did not make gives, outside of autograd's node."""
        made = replace(like, name=self.recorder.names.fresh())
        self.made.append(BoundSymbol(symbol, args, {}, made, grad_enabled=seen))
        return made

    def _replayed(self, lineage: Lineage, home: str, kind: str, index: int, reshaped: Collection[str] = ()) -> Returned:
        """The last of a lineage, to be made from `home` by the calls that made it."""
        if lineage[-1] == home:
            return Returned(kind, index)
        self.roots[home] = (kind, index)
        self.views.update(self._lineages.calls(lineage, home, reshaped))
        return Returned("view", lineage[-1])
