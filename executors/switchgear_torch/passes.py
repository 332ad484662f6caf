"""The passes that make PyTorch's calls cheaper, bit-identical."""

from __future__ import annotations

import switchgear as sg

from .late_products import late_products
from .linears import join_linears
from .nested import join_nested
from .numbers import hold_numbers
from .reuse_buffers import reuse_buffers
from .short_chains import short_chains
from .spelling import spell
from .user_ranges import user_ranges

#: In order of running; spelling and the user's ranges are last, when the calls are final.
PASSES = (
    sg.passes.PassPlacement("short_chains", "before_fusion", short_chains),
    sg.passes.PassPlacement("nested", "before_fusion", join_nested),
    sg.passes.PassPlacement("late_products", "after_claim", late_products),
    sg.passes.PassPlacement("reuse_buffers", "after_claim", reuse_buffers),
    sg.passes.PassPlacement("linears", "after_claim", join_linears),
    sg.passes.PassPlacement("numbers", "after_claim", hold_numbers),
    sg.passes.PassPlacement("spelling", "after_claim", spell),
    sg.passes.PassPlacement("user_ranges", "after_claim", user_ranges),
)
