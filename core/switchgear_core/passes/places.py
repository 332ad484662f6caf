"""Places: the positions of a trace's values in memory, tracked line by line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from switchgear_core.ir.aliasing import storages, viewed_argument
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.proxy import TensorProxy, is_symbolic
from switchgear_core.ir.purity import frozen
from switchgear_core.ir.symbol import BoundSymbol, with_parts
from switchgear_core.ir.trace import Trace

#: Sizes, strides and offset in memory; or the calls that make the view, if a number is symbolic.
Place: TypeAlias = tuple[object, ...]


class Places:
    """The places of the values defined so far.

    `memory` maps each value to the first value in its memory. `left` counts for each memory the reads by lines yet to
    come. `full` are the values that fill their memory. `at` is the place of a value. `shift` is the distance from its
    proxy's offset to its actual offset, None if symbolic.

    Args:
        trace: the trace whose lines are tracked.
        source: the lines before claiming, which tell the views that whole composites return.
    """

    def __init__(self, trace: Trace, source: Sequence[BoundSymbol]) -> None:
        self._storage = storages((*source, *trace.bound_symbols))
        #: The values that existed before lines were claimed.
        self.originals = {proxy.name for item in with_parts(source) for proxy in item.outputs}
        # claimed calls have lost their parts, which the source has
        lines = leaves_of((*trace.bound_symbols, *source))
        self._leaves = {proxy.name: leaf for leaf in lines for proxy in leaf.outputs}
        #: The lines that read each value; outputs count as one line more.
        self.readers: defaultdict[str, list[int]] = defaultdict(list)
        for index, item in enumerate(trace.bound_symbols):
            for proxy in item.inputs:
                self.readers[proxy.name].append(index)
        for output in trace.outputs:
            if output is not None:
                self.readers[output.name].append(len(trace.bound_symbols))
        self.memory: dict[str, str] = {}
        self.remaining: Counter[str] = Counter()
        self.at: dict[str, Place] = {}
        self.shift: dict[str, int | None] = {}
        self.full: set[str] = set()
        for proxy in trace.inputs:
            self.define(proxy, proxy.name, 0)

    def root(self, name: str) -> str:
        """Return the first value in the memory of a value, according to the functional trace."""
        return self._storage.get(name, name)

    def of(self, name: str) -> str:
        """Return the memory of a value, initially its own."""
        return self.memory.get(name, name)

    def define(
        self,
        proxy: TensorProxy,
        memory: str,
        shift: int | None,
        place: Place | None = None,
    ) -> None:
        """Define a value; `place` is its place if symbolic, by default all of the memory."""
        name = proxy.name
        is_number = shift is not None and not is_symbolic(proxy)
        self.memory[name], self.shift[name] = memory, shift if is_number else None
        everything = ("all", memory)
        self.at[name] = (
            geometry(proxy, shift) if is_number and shift is not None else place or everything
        )
        self.remaining[memory] += len(self.readers.get(name, ()))
        if place is None or self.at[name] in (everything, self.at.get(memory)):
            self.full.add(name)

    def compute(self, proxy: TensorProxy) -> None:
        """Define the result of a line that writes nothing: in memory of its own, or a view."""
        root = self.root(proxy.name)
        if root == proxy.name:
            self.define(proxy, root, 0)
        else:
            place = self._viewed_place(proxy.name)
            self.define(proxy, self.of(root), self.shift.get(root), place)

    def alias(self, proxy: TensorProxy, base: TensorProxy) -> None:
        """Define another name for `base`, or for a value written to it."""
        place = None if base.name in self.full else self.at[base.name]
        self.define(proxy, self.memory[base.name], self.moved(proxy, base), place)

    def moved(self, proxy: TensorProxy, base: TensorProxy) -> int | None:
        """Return the distance from a proxy's offset to the actual offset of a value placed like `base`."""
        shift = self.shift.get(base.name)
        if shift is None or is_symbolic(proxy, base):
            return None
        return shift + base.storage_offset - proxy.storage_offset

    def _viewed_place(self, name: str) -> Place:
        """Return the place of a view: the call that makes it, applied to a place."""
        leaf = self._leaves.get(name)
        viewed = None if leaf is None or len(leaf.outputs) > 1 else viewed_argument(leaf)
        if leaf is None or viewed is None or viewed is not leaf.args[0]:
            return (name,)
        place = self.at.get(viewed.name) or self._viewed_place(viewed.name)
        return place_of_call(leaf.symbol.fn, leaf.args[1:], leaf.kwargs, place)


def geometry(proxy: TensorProxy, shift: int) -> Place:
    """Return the place of a value at a distance of `shift` from its proxy's offset."""
    return proxy.shape, proxy.stride, proxy.storage_offset + shift


def place_of_call(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], of: Place) -> Place:
    """Return the place of a view by its call; symbolic numbers as written."""
    return str(fn), frozen(args), frozen(dict(kwargs)), of


def extent(proxy: TensorProxy, shift: int) -> tuple[int, int]:
    """Return the offset of a value's first element, and the offset behind its last."""
    start = proxy.storage_offset + shift
    steps = [(size - 1) * step for size, step in zip(proxy.shape, proxy.stride, strict=True)]
    return start, start if 0 in proxy.shape else start + sum(steps) + 1


def strides(proxy: TensorProxy) -> tuple[object, ...]:
    """Return the strides, symbolic strides as written: sizes stay undecided."""
    return proxy.layout[1][len(proxy.shape) :][: len(proxy.shape)]  # type: ignore[no-any-return]
