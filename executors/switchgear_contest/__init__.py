"""The contest: under `executors="auto"` a region goes to who runs it fastest, as measured here or remembered.

All candidates compile it, and run it beside its operators (`measuring`): in turn, on made-up tensors of its layouts,
the least of 2 to 15 repetitions, 0.3 s in all if two need no more; no stream, mode or warning of the user's is touched.
Whose results are not those of the operators is out: a warning names a file that shows it (`reproducing`). Where
repetitions differ, as beside other programs, they go on for 1 s; if they still do, the times are not remembered. Alike
regions are measured once. The times are kept on disk (`sg.disk_cache`, in `SWITCHGEAR_CACHE_DIR` or the user's folder
for caches) by all that they depend on: region, contestants, their versions, options and code, processor or GPU,
threads, precision. Not measured is what fusing does to a region's neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

from .contest import hold


@sg.hookimpl
def switchgear_choose(regions: Sequence[sg.Region], context: sg.RegionContext) -> Sequence[sg.RegionChoice]:
    """The fastest candidate of each region, or its operators where none of them is faster."""
    return hold(regions, context)
