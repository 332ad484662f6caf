"""Run the benchmarks and print their tables: `python -m benchmarks [NAME …] [--rounds N] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import checkpoint_memory, compile_latency, dispatch, whole_step

#: Each benchmark's module, and how many rounds make its medians steady.
BENCHMARKS = {
    "checkpoint_memory": (checkpoint_memory, 1),
    "compile_latency": (compile_latency, 5),
    "dispatch": (dispatch, 15),
    "whole_step": (whole_step, 15),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line names; all without names."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Switchgear beside its peers, in one run."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--rounds", type=int, help="rounds of each benchmark; more are steadier")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there as well")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    torch.set_num_threads(1)
    where = {"torch": torch.__version__, "python": platform.python_version(), "processor": platform.machine()}
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    written: dict[str, Any] = {"where": where}
    for name in options.names or BENCHMARKS:
        benchmark, rounds = BENCHMARKS[name]
        result = benchmark.run(options.rounds or rounds)
        print(f"\n{result}", flush=True)
        written[name] = {**asdict(result), "ratio": result.ratio}
    if options.json:
        options.json.write_text(json.dumps(written, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
