"""The executor `nvfuser`: regions of operators compiled by NVIDIA's nvFuser, for CUDA devices.

`availability` says what is missing, layer by layer, without importing nvFuser. What it takes is what can be written
down: `translation` has a table from operator overloads to small functions, and `lowering` takes other operators apart
by PyTorch's decompositions. They write into a `Definition`, a value that needs no nvFuser; its key says which regions
are alike. Intermediate results of 16 bits are rounded where PyTorch rounds them. Random numbers are left to PyTorch.
With a `runner` (`tests/nvfuser/replay.py`) the executor takes tensors of the CPU: claiming, regions and translations
are tested so, without a GPU.
"""

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
