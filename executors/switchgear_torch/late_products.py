"""Late products: a matrix product moves to its first reader, if this lowers the peak of memory.

PyTorch's formula computes the gradient of a linear layer's input before the gradient of its weight. The former would be
held next to the inputs of the latter, saved or recomputed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

import torch

import switchgear as sg

from .reuse_buffers import SMALLEST

_aten = torch.ops.aten
_PRODUCTS = frozenset({_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default})
#: Maximal number of lines between old and new place.
FARTHEST = 64


def late_products(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Move PyTorch products down to their first reader; never past a check, or a call that writes."""
    lines = list(trace.bound_symbols)
    products = [index for index, item in enumerate(lines) if _is_large_product(item)]
    if trace.numbers or not products:
        return trace
    base_of = sg.passes.storages(lines)
    # a saved tensor ends at its last reader in the backward
    theirs = (*trace.outputs, *(() if context.gives_gradients else trace.inputs))
    survivors = {base_of.get(proxy.name, proxy.name) for proxy in theirs if proxy is not None}.union(trace.tensors)
    read = [frozenset(base_of.get(proxy.name, proxy.name) for proxy in item.inputs) for item in lines]
    reads = Counter(name for names in read for name in names - survivors)
    results = [proxy for item in lines for proxy in item.outputs if proxy.name not in base_of]
    size = {proxy.name: proxy.bytes for proxy in (*trace.inputs, *results)}
    moved = False
    for index in reversed(products):
        name = lines[index].output.name
        end = next((at for at in _reachable(lines, index) if name in read[at]), None)
        if end is None or end == index + 1:
            continue
        inside = Counter(name for names in read[index:end] for name in names)
        ending = {name for name, count in inside.items() if count == reads[name]}
        now = range(index, end)
        later = [*now[1:], index]
        if _most_held(later, lines, read, ending, size) < _most_held(now, lines, read, ending, size):
            lines[index:end], read[index:end] = [lines[at] for at in later], [read[at] for at in later]
            moved = True
    return replace(trace, bound_symbols=tuple(lines)) if moved else trace


def _most_held(
    order: Sequence[int],
    lines: Sequence[sg.BoundSymbol],
    read: Sequence[Set[str]],
    ending: Set[str],
    size: Mapping[str, int],
) -> int:
    """Return the peak of bytes if lines run in this order, without values held before.

    `read` are the values read by each line; values in `ending` have no other readers.
    """
    reads_left = Counter(name for at in order for name in read[at] & ending)
    alive = most = 0
    for at in order:
        alive += sum(size.get(proxy.name, 0) for proxy in lines[at].outputs)
        most = max(most, alive)
        reads_left.subtract(read[at] & ending)
        alive -= sum(size.get(name, 0) for name in read[at] & ending if not reads_left[name])
    return most


def _is_large_product(item: sg.BoundSymbol) -> bool:
    return item.symbol.fn in _PRODUCTS and isinstance(item.output, sg.TensorProxy) and item.output.bytes >= SMALLEST


def _reachable(lines: Sequence[sg.BoundSymbol], index: int) -> Iterator[int]:
    """Yield the positions where the line's result could be read first: after lines that it may move past."""
    for at in range(index + 1, min(len(lines), index + 1 + FARTHEST)):
        yield at
        if lines[at].is_check or sg.passes.written_arguments(lines[at]):
            return
