"""Regions of `torch.utils.checkpoint`."""

from __future__ import annotations

import contextlib

from switchgear import torch_private as internals
from switchgear.capture.checkpointing import region, run_reentrant
from switchgear.capture.handler import Handler


class Checkpointing(Handler):
    """A region is recorded with a tag, and made again in the backward."""

    def around(self) -> contextlib.AbstractContextManager[None]:
        """PyTorch's two ways to run a region are redirected."""
        return internals.checkpoint_regions(region, run_reentrant)
