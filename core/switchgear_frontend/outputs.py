"""Outputs of a captured function: its return value, and the changes of its inputs.

A result is an input itself; a view of an input, of another result or of a created value; or a value. Views are
recreated after the call, by their original calls (`lineage`), and so behave as in eager under writes and derivatives.
An input with another value at the end was written to: the new value is an output, copied back by the epilogue, under
autograd if autograd saw the write.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.record.inputs import RecordedInput
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.signature import check_returned
from switchgear_core.record.sizes import fixed
from switchgear_core.record.structure import Structure, flatten
from switchgear_core.record.tracker import history_of, is_spoiled, same_history, version_of
from switchgear_frontend.lineage import Lineage, Lineages


@dataclass(frozen=True, slots=True)
class Mutation:
    """An input whose data the function wrote: the trace's output at `output` is copied back into the input.

    `tracked`: autograd saw the write, so the copy is made under autograd.
    """

    input: int
    output: int
    tracked: bool
    #: No version of the input shows the write: all of it went through `.data`.
    hidden: bool = False
    #: The function took `.data` of the input; the input's versions show no later write to it.
    has_data: bool = False
    #: Increase of the version.
    versions: int = 0


@dataclass(frozen=True, slots=True)
class Returned:
    """A leaf of the return value: an output or input of the trace by index, a view by name, or a Python value.

    `is_data`: the result is `.data` of that value, with its own versions.
    """

    kind: str
    place: Any = None
    value: Any = None
    is_data: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """Steps to finish a call after its trace has run, in order.

    Attributes:
        metadata: in-place calls that change sizes, strides or versions of inputs.
        mutations: copies into inputs.
        roots: starting values of views: name, "input" or "output", and index.
        views: calls that create views as in eager, outside of autograd's node.
    """

    proxies: tuple[TensorProxy, ...]
    returned: tuple[Returned, ...]
    spec: Structure
    metadata: tuple[BoundSymbol, ...]
    mutations: tuple[Mutation, ...]
    roots: tuple[tuple[str, str, int], ...]
    views: tuple[BoundSymbol, ...]


def reshaped_inputs(outputs: Outputs, inputs: Sequence[TensorProxy]) -> list[int]:
    """Return the inputs with changed sizes or strides; they get a new version, as do tensors with the same counter."""
    names = {call.inputs[0].name for call in outputs.metadata}
    return [index for index, proxy in enumerate(inputs) if proxy.name in names]


def outputs_of(recorder: Recorder, result: object, *, views: bool) -> Outputs:
    """Return the outputs of the function watched by `recorder`, including its return value.

    Without `views`, every returned tensor that is not an input is an output of the trace.
    """
    leaves, spec = flatten(result, objects=True)
    collector = _Collector(recorder, leaves, views)
    returned = tuple([collector.returned(leaf) for leaf in leaves])
    mutations = tuple(collector.mutations())
    roots = tuple((name, *place) for name, place in collector.roots.items())
    calls = tuple([collector.views[position] for position in sorted(collector.views)])
    proxies = tuple(collector.proxies.values())
    return Outputs(
        proxies, returned, spec, tuple(recorder.inputs.metadata_calls), mutations, roots, calls
    )


class _Collector:
    """Sorter of outputs into values of the trace, inputs, and views of either."""

    def __init__(self, recorder: Recorder, leaves: list[object], views: bool) -> None:
        self.recorder = recorder
        self.tracker = recorder.tracker
        self._separates_views = views
        self.proxies: dict[str, TensorProxy] = {}
        self.roots: dict[str, tuple[str, int]] = {}
        #: Calls of the function that create returned views, by place in the program.
        self.views: dict[int, BoundSymbol] = {}
        tensors = {
            id(leaf): leaf
            for leaf in leaves
            if isinstance(leaf, torch.Tensor) and not recorder.input_of(leaf)
        }
        self._sharing: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors.values():
            self.tracker.reconcile(tensor, is_used=True)
            self._sharing.setdefault(internals.storage_key(tensor), []).append(tensor)
        #: The first input in each memory, and the inputs by their current values.
        self._inputs: dict[int, RecordedInput] = {}
        self._input_of: dict[str, int] = {}
        for index, entry in enumerate(recorder.inputs):
            self._input_of.setdefault(self.tracker.proxy_of(entry.wrapper).name, index)
            if not entry.is_view:
                self._inputs[internals.storage_key(entry.wrapper)] = entry
        self._reshaped = {call.inputs[0].name for call in recorder.inputs.metadata_calls}
        self._apart_memory = set(
            map(internals.storage_key, self.tracker.writes.data_tensors.values())
        )

    @functools.cached_property
    def _lineages(self) -> Lineages:
        return Lineages(self.recorder)

    def mutations(self) -> Iterator[Mutation]:
        """Yield the mutations of inputs, with the new values as outputs."""
        for index, entry in enumerate(self.recorder.inputs):
            first, final = entry.proxy, self.tracker.proxy_of(entry.wrapper)
            if first.name in self._reshaped:
                self.roots[first.name] = ("input", index)
            self._refuse_other_memory(entry)
            if entry.is_view:
                continue
            kind = final.shape, final.dtype, final.device
            if first.name not in self._reshaped and kind != (
                first.shape,
                first.dtype,
                first.device,
            ):
                raise Unsupported(
                    f"the function gives {first.name} another shape, dtype or device; return a new tensor"
                )
            if final.name == first.name or self._lineages.of(entry.wrapper)[0].name == first.name:
                continue
            tracked = not same_history(history_of(entry.wrapper), entry.history)
            if tracked and (
                first.name in self._reshaped or first.name in self.tracker.writes.unseen
            ):
                raise Unsupported(
                    f"the function writes to {first.name} where autograd sees it; it also changes its sizes or strides "
                    "in place, or writes to it where autograd does not see it; return a new tensor",
                    splits=False,  # graphs save copies, but eager's backward sees the writes
                )
            # writes through .data, or by a BatchNorm, are not reported to autograd
            versions = version_of(entry.wrapper) - entry.version
            hidden = not tracked and not versions
            has_data = internals.storage_key(entry.wrapper) in self._apart_memory
            yield Mutation(index, self._output(final), tracked, hidden, has_data, versions)

    def _refuse_other_memory(self, entry: RecordedInput) -> None:
        wrapper = entry.wrapper
        if internals.storage_replaced(wrapper) or internals.storage_key(wrapper) != entry.storage:
            raise Unsupported(
                f"the function gives {entry.proxy.name} other memory (set_(), or an assignment to .data); write the "
                "values into it with copy_() under torch.no_grad(), or call it outside the jitted function",
                splits=False,  # TorchDynamo loses gradients of earlier uses
            )
        if internals.storage_resized(wrapper):
            raise Unsupported(
                f"the function resizes the storage of {entry.proxy.name}; do so outside the jitted function"
            )

    def returned(self, leaf: object) -> Returned:
        """Return the place of a leaf of the return value after a call."""
        if not isinstance(leaf, torch.Tensor):
            leaf = fixed(leaf)
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
        if self._separates_views and key in self._inputs:
            return self._view_of_input(leaf, self._inputs[key])
        together = self._sharing[key]
        if not self._separates_views or (len(together) == 1 and not leaf._is_view()):
            result = Returned("output", self._output(self.tracker.proxy_of(leaf)))
        else:
            result = self._view_of_output(leaf, together)
        return replace(result, is_data=self.tracker.counts_apart(leaf))

    def _view_of_output(self, leaf: torch.Tensor, together: list[torch.Tensor]) -> Returned:
        if len(together) > 1 and any(
            self.tracker.counts_apart(tensor) and tensor._is_view() for tensor in together
        ):
            raise Unsupported(
                "the function returns a view of .data of a tensor, and another of its memory; return detach() of it",
                splits=False,
            )
        lineages = [self._lineages.of(tensor) for tensor in together]
        root = self._lineages.common_root(lineages)
        pairs = zip(together, lineages, strict=True)
        if root is None or (
            len(together) > 1 and not all(self._is_plain(*pair, root) for pair in pairs)
        ):
            raise Unsupported(
                "the function returns several tensors that share memory, in a way that cannot be told; "
                "return clones of them"
            )
        lineage = self._lineages.of(leaf)
        if lineage[-1].name == root.name:
            return Returned("output", self._output(root))
        return self._replayed(lineage, root, "output", self._output(root))

    def _is_plain(self, tensor: torch.Tensor, lineage: Lineage, root: TensorProxy) -> bool:
        """Check whether a tensor is in eager as planned: `root` itself, or a view of it."""
        is_view = lineage[-1].name != root.name
        return tensor._is_view() == is_view or any(map(self._lineages.is_detached, lineage))

    def _view_of_input(self, leaf: torch.Tensor, memory: RecordedInput) -> Returned:
        if self.tracker.counts_apart(leaf):
            raise Unsupported(
                f"the function returns .data of {memory.proxy.name}, or a view of it, which counts versions by itself; "
                "return detach() of it",
                splits=False,
            )
        lineage = self._lineages.of(leaf)
        root = next((value for value in reversed(lineage) if value.name in self._input_of), None)
        if root is None or any(
            call.inputs[0].name == memory.proxy.name for call in self.recorder.inputs.metadata_calls
        ):
            raise Unsupported(
                f"the function returns a view of {memory.proxy.name}, and gives that other sizes in place, or makes "
                "the view in a way that cannot be repeated; return a clone of it"
            )
        index = self._input_of[root.name]
        is_written = self.recorder.inputs[index].proxy.name != root.name
        made_unseen = not all(map(self._lineages.is_seen, lineage[lineage.index(root) :]))
        if is_written and made_unseen and any(value.requires_grad for value in lineage):
            raise Unsupported(
                f"the function returns a view, made under no_grad, of {memory.proxy.name}, which it writes to; return "
                "a clone of it"
            )
        return self._replayed(lineage, root, "input", index)

    def _output(self, proxy: TensorProxy) -> int:
        self.proxies.setdefault(proxy.name, proxy)
        return list(self.proxies).index(proxy.name)

    def _replayed(self, lineage: Lineage, root: TensorProxy, kind: str, index: int) -> Returned:
        """Return the last value of a lineage as made from `root` by the recorded calls."""
        if lineage[-1].name == root.name:
            return Returned(kind, index)
        self.roots[root.name] = (kind, index)
        self.views.update(self._lineages.calls(lineage, root))
        return Returned("view", lineage[-1].name)
