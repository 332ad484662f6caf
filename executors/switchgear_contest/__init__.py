"""The contest: under `executors="auto"` the fastest executor of a region runs the region, as measured or remembered.

All candidates compile the region. They run in turn with the region's operators, on random tensors of its layouts, and
the minimum of 2 to 15 repetitions counts (`measuring`). A region takes 0.3 s if two repetitions agree, and up to 1 s
while other programs cause differences; times that still differ are not remembered. The user's streams, modes and
warnings do not change. A candidate with other results than the operators is out: a warning names a file with proof
(`reproducing`).

Similar regions are measured once. The times are kept on disk (`sg.disk_cache`, in `SWITCHGEAR_CACHE_DIR` or the user's
folder for caches) by everything with an influence. The key holds the region, and the contestants with versions, options
and code; also processor or GPU, threads and precision. The effect of fusion on a region's neighbours is not measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

from .contest import hold


@sg.hookimpl
def switchgear_choose(
    regions: Sequence[sg.executors.Region], context: sg.executors.RegionContext
) -> Sequence[sg.executors.RegionChoice]:
    """Choose the fastest candidate of each region, or its operators if no candidate is faster.

    Args:
        regions: the regions of a program.
        context: the interface to the call of `jit`.

    Returns:
        One choice for each region, with the measured times as its reason.
    """
    return hold(regions, context)
