"""The executor `nvfuser`: regions of operators compiled by NVIDIA's nvFuser, for CUDA devices."""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

from .definition import Definition
from .executor import NvfuserExecutor

__all__ = ["Definition", "NvfuserExecutor"]


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """The executor `nvfuser`; by declared priority it comes after `torch`, which takes everything."""
    return (NvfuserExecutor(),)
