"""Varying sizes: sizes that changed between calls are symbolic from the second capture on, and no others.

Integers in Python objects, such as counters, count as sizes: of an input of one element, expanded to the integer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.record.signature import Argument, Arguments, Held, Kind, tensor_of
from switchgear_core.record.sizes import Marks
from switchgear_runtime.entry import Entry

#: The limit on vain attempts with a symbolic number: at first, related sizes may not have changed yet.
_PATIENCE = 4


class VaryingSizes:
    """The dimensions with several sizes in calls of one kind."""

    def __init__(self) -> None:
        self._marks: dict[Kind, dict[int | str, frozenset[int]]] = {}
        self._fixed: set[Kind] = set()
        #: The number of vain attempts with symbolic numbers.
        self._in_vain: Counter[int | str] = Counter()

    def marks(self, kind: Kind) -> Marks:
        """Return the dimensions marked as varying for calls of a kind."""
        return self._marks.get(kind, {})

    def give_up(self, kind: Kind) -> None:
        """Stop symbolic numbers for calls of a kind, or symbolic sizes if there are no symbolic numbers."""
        marks = self._marks.pop(kind, {})
        numbers = {place for place in marks if isinstance(place, str)}
        if not numbers:
            self._fixed.add(kind)
        elif sizes := {place: dims for place, dims in marks.items() if place not in numbers}:
            self._marks[kind] = sizes
        self._in_vain.update(dict.fromkeys(numbers, _PATIENCE))

    def notice(self, call: Arguments, entries: Iterable[Entry]) -> Marks:
        """Compare a call that fits no entry with the most recent comparable entry."""
        kind = call.kind
        if kind in self._fixed:
            return {}
        for index, leaf in enumerate(call.leaves):
            if isinstance(leaf, torch.Tensor) and (marked := internals.marked_dynamic(leaf)):
                marks = self._marks.setdefault(kind, {})
                marks[index] = marks.get(index, frozenset()) | marked
        differences = (_changed(entry, call.leaves) for entry in entries if entry.spec == call.spec)
        for place, dims in next(filter(None, differences), {}).items():
            if self._in_vain[place] < _PATIENCE:
                marks = self._marks.setdefault(kind, {})
                marks[place] = marks.get(place, frozenset()) | dims
        return self.marks(kind)

    def decide(self, kind: Kind, paths: Iterable[str]) -> None:
        """Count numbers in Python objects whose exact values are needed: symbolic, they are captured in vain."""
        for path in paths:
            self._in_vain[path] += 1
            if self._in_vain[path] >= _PATIENCE:
                self._marks.get(kind, {}).pop(path, None)


def _changed(entry: Entry, leaves: list[object]) -> dict[int | str, frozenset[int]] | None:
    """Return the input dimensions with other sizes in a call; None if more than sizes differs.

    Where the sizes are equal, `~dim` marks another stride.
    """
    changed: dict[int | str, frozenset[int]] = {}
    if len(entry.captured.sources) != len(entry.captured.trace.inputs):
        return None  # a front end of a part binds them
    pairs = zip(entry.captured.sources, entry.captured.trace.inputs, strict=True)
    for source, proxy in pairs:
        if not isinstance(source, (Argument, Held)):
            continue
        try:
            tensor = tensor_of(source, leaves)
        except Unsupported:
            return None
        if tensor.dim() != len(proxy.shape):
            return None
        dims = _differing(tensor.shape, proxy.shape)
        if dims or (dims := [~dim for dim in _differing(tensor.stride(), proxy.stride)]):
            changed[source.place] = frozenset(dims)
    return changed | dict.fromkeys(entry.varying(leaves), frozenset({0}))


def _differing(now: Sequence[int], then: Sequence[object]) -> list[int]:
    pairs = enumerate(zip(now, then, strict=True))
    return [dim for dim, (one, other) in pairs if type(other) is int and one != other]
