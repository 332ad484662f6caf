"""Check whether nvFuser translates here, and print the answer or the fault. Needs neither a GPU nor Switchgear."""

from __future__ import annotations

import importlib
import os
import sys

import torch


def main() -> int:
    """Load nvFuser and define a fusion."""
    if not (torch.version.cuda or "").startswith("13."):
        print(f"PyTorch {torch.__version__} is not built for CUDA 13, as nvFuser is: from an index of CPU builds?")
        return 1
    # torch 2.11 lacks a function that nvFuser calls only in programs of several processes: bind lazily
    sys.setdlopenflags(os.RTLD_LAZY)
    nvfuser = importlib.import_module("nvfuser_direct")
    with nvfuser.FusionDefinition() as definition:
        x = definition.define_tensor(shape=[-1], contiguity=[True], dtype=nvfuser.DataType.Float)
        definition.add_output(definition.ops.relu(x))
    print(f"nvFuser {nvfuser.version()} translates under PyTorch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
