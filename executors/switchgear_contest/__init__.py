"""The contest: under `executors="auto"` the executor that is fastest for a region takes it, as measured or remembered.

All candidates compile the region. They run in turn with the region's operators, on random tensors of its layouts, and
the least of 2 to 15 repetitions counts (`measuring`). A region takes 0.3 s if two repetitions agree, and up to 1 s
where they differ because other programs run; times that still differ are not remembered. No stream, mode or warning of
the user's changes. A candidate whose results differ from the operators' is out: a warning names a file that shows it
(`reproducing`).

Regions that are alike are measured once. The times are kept on disk (`sg.disk_cache`, in `SWITCHGEAR_CACHE_DIR` or the
user's folder for caches) by all that they depend on: region, contestants, their versions, options and code, processor
or GPU, threads, precision. The effect of fusion on a region's neighbours is not measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

from .contest import hold


@sg.hookimpl
def switchgear_choose(
    regions: Sequence[sg.executors.Region], context: sg.executors.RegionContext
) -> Sequence[sg.executors.RegionChoice]:
    """The fastest candidate of each region, or its operators where none of them is faster."""
    return hold(regions, context)
