"""The executor `nvfuser`: regions of operators compiled by NVIDIA's nvFuser, for CUDA devices.

`availability` names the missing layer, without importing nvFuser. `translation` has a table from operator overloads to
small functions, and `lowering` decomposes other operators by PyTorch's decompositions. Both write into a `Definition`,
a value independent of nvFuser, with equal keys for similar regions. 16-bit intermediate results are rounded where
PyTorch rounds them. PyTorch draws random numbers. With a `runner` (`tests/nvfuser/replay.py`) the executor accepts CPU
tensors: claiming, regions and translations are tested in this way, without a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import switchgear as sg

from .definition import Definition
from .executor import NvfuserExecutor

__all__ = ["Definition", "NvfuserExecutor"]


@sg.hookimpl
def switchgear_executors() -> Sequence[sg.Executor]:
    """Return the executor `nvfuser`; by its priority it comes after `torch`, which claims everything."""
    return (NvfuserExecutor(),)
