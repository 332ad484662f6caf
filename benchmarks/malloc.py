"""Whether freed memory is kept for the next tensor, or given back and mapped again, page fault by page fault.

Stock glibc maps every large tensor freshly and unmaps the memory of a freed tensor.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence

#: Variables that glibc reads when a process starts: nothing is mapped on its own, and freed memory is kept.
KEPT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(2**26),
    "MALLOC_ARENA_MAX": "1",
}


def keeps_memory() -> bool:
    """Check whether this process keeps freed memory."""
    return all(os.environ.get(name) == value for name, value in KEPT.items())


def start_again_keeping_memory(arguments: Sequence[str]) -> None:
    """Run the benchmarks in place of this process, in an environment that keeps memory."""
    if platform.libc_ver()[0] != "glibc":
        raise NotImplementedError("keeping memory is done by settings of glibc, and this is another C library")
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *arguments], {**os.environ, **KEPT})
