"""The minimum cut of a network, by scipy's maximum flow."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

SOURCE, SINK = 0, 1
#: scipy's flows are 32 bits wide, and wrong without a word beyond; half of that leaves room for rounding up.
_LARGEST_SUM = 2**30


def min_cut(capacities: Mapping[tuple[int, int], int | None]) -> frozenset[int]:
    """The nodes on the sink's side of a cut of minimum capacity; of several such cuts, the one with the fewest.

    The network is given by its arcs, None standing for an unlimited capacity; nodes are numbered from 0, the source,
    and 1, the sink. No path may be unlimited. Capacities that add up to more than 2**30 are rounded up to a multiple
    of a unit, which is what fits.
    """
    total = sum(capacity for capacity in capacities.values() if capacity is not None)
    unit = max(1, -(-total // _LARGEST_SUM))
    scaled = {
        arc: None if capacity is None else -(-capacity // unit)
        for arc, capacity in capacities.items()
    }
    unlimited = 1 + sum(capacity for capacity in scaled.values() if capacity is not None)
    numpy, sparse, graphs = scipy("sparse", "sparse.csgraph")
    size = 2 + max((node for arc in scaled for node in arc), default=0)
    data = numpy.array(
        [unlimited if found is None else found for found in scaled.values()], numpy.int32
    )
    arcs = numpy.array(list(scaled), numpy.int32).reshape(-1, 2)
    network = sparse.csr_matrix((data, (arcs[:, 0], arcs[:, 1])), shape=(size, size))
    residual = (network - graphs.maximum_flow(network, SOURCE, SINK).flow).tocsr()
    residual.eliminate_zeros()
    reaching = graphs.breadth_first_order(residual.T.tocsr(), SINK, return_predecessors=False)
    return frozenset(reaching.tolist())


def scipy(*parts: str) -> list[Any]:
    """NumPy and parts of scipy, imported when they are first needed: it takes a tenth of the time that PyTorch does."""
    return [*map(importlib.import_module, ("numpy", *(f"scipy.{part}" for part in parts)))]
