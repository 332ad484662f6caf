"""Late products: a matrix product is made where it is first read, if less is held at once that way.

By PyTorch's formula the gradient of a linear layer's input is made before that of its weight, and would be held beside
what the latter reads, saved or made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

import torch

import switchgear as sg

from .reuse_buffers import SMALLEST

_aten = torch.ops.aten
_PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default})
#: How many lines a product may move.
FARTHEST = 64


def late_products(trace: sg.Trace, context: sg.PassContext) -> sg.Trace:
    """Move products of PyTorch's down to their first reader; never past a check, or a call that writes."""
    lines = list(trace.bound_symbols)
    products = [index for index, item in enumerate(lines) if _is_large_product(item)]
    if trace.numbers or not products:
        return trace
    home = sg.storages(lines)

    def read(item: sg.BoundSymbol) -> set[str]:
        return {home.get(proxy.name, proxy.name) for proxy in item.inputs}

    # what was saved ends where the backward reads it last
    theirs = (*trace.outputs, *(() if context.gives_gradients else trace.inputs))
    kept = {home.get(proxy.name, proxy.name) for proxy in theirs if proxy is not None}.union(trace.constants)
    reads = Counter(name for item in lines for name in read(item) if name not in kept)
    made = [proxy for item in lines for proxy in item.outputs if proxy.name not in home]
    size = {proxy.name: proxy.bytes for proxy in (*trace.inputs, *made)}

    def most_held(window: Sequence[sg.BoundSymbol], ending: Set[str]) -> int:
        """The most bytes at once, but for those that were held before."""
        left = Counter(name for item in window for name in read(item) & ending)
        held = most = 0
        for item in window:
            held += sum(size.get(proxy.name, 0) for proxy in item.outputs)
            most = max(most, held)
            left.subtract(read(item) & ending)
            held -= sum(size.get(name, 0) for name in read(item) & ending if not left[name])
        return most

    moved = False
    for index in reversed(products):
        item = lines[index]
        end = next((at for at in _reachable(lines, index) if item.output.name in read(lines[at])), None)
        if end is None or end == index + 1:
            continue
        window = lines[index:end]
        inside = Counter(name for line in window for name in read(line))
        ending = {name for name, count in inside.items() if count == reads[name]}
        later = [*window[1:], item]
        if most_held(later, ending) < most_held(window, ending):
            lines[index:end] = later
            moved = True
    return replace(trace, bound_symbols=tuple(lines)) if moved else trace


def _is_large_product(item: sg.BoundSymbol) -> bool:
    return item.symbol.fn in _PRODUCTS and isinstance(item.output, sg.TensorProxy) and item.output.bytes >= SMALLEST


def _reachable(lines: Sequence[sg.BoundSymbol], index: int) -> Iterator[int]:
    """Where the line's result could be read first: behind lines that it may move past."""
    for at in range(index + 1, min(len(lines), index + 1 + FARTHEST)):
        yield at
        if lines[at].is_check or sg.written_arguments(lines[at]):
            return
