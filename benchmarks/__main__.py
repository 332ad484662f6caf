"""Run the benchmarks and print their tables: `python -m benchmarks [NAME …]`; `--help` lists the options."""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import (
    budgets,
    checkpoint_memory,
    compile_latency,
    decode,
    dispatch,
    gpu,
    gpu_workloads,
    inductor_latency,
    long_trace,
    malloc,
    plot,
    plugin_cost,
    python_state,
    scripts,
    start,
    throughput,
    whole_step,
    work_curve,
)
from benchmarks.contestants import CONTESTANTS
from benchmarks.workloads import WORKLOADS

#: Each benchmark, and the number of rounds that makes its medians steady.
BENCHMARKS: dict[str, tuple[Callable[[int], Any], int]] = {
    "budgets": (budgets.run, 9),
    "checkpoint_memory": (checkpoint_memory.run, 1),
    "compile_latency": (compile_latency.run, 5),
    "decode": (decode.run, 15),
    "dispatch": (dispatch.run, 75),
    "gpu": (gpu.run, gpu.ROUNDS),
    "inductor_latency": (inductor_latency.run, 3),
    "long_trace": (long_trace.run, 1),
    "plugin_cost": (plugin_cost.run, 7),
    "python_state": (python_state.run, 5),
    "scripts": (scripts.run, 1),
    "start": (start.run, 7),
    "throughput": (throughput.run, throughput.ROUNDS),
    "whole_step": (whole_step.run, 15),
    "work_curve": (work_curve.run, 1),
}
#: Benchmarks that run only if named: not every machine can run these.
ON_REQUEST = ("budgets", "gpu", "work_curve")
#: Benchmarks that take a choice of workloads and contestants, and `--quick`.
WITH_CHOICE = {
    "throughput": throughput.QUICK_ROUNDS,
    "gpu": gpu.QUICK_ROUNDS,
    "work_curve": 1,
    "budgets": budgets.QUICK_ROUNDS,
}
EPILOG = f"""benchmarks (marked *: only where named):
  budgets*           a budget of saved bytes beside checkpointing by layer at equal bytes
  checkpoint_memory  bytes of a checkpointed GPT-2
  compile_latency    first training result of a GPT-2, by depth
  decode             writes in place to a part of caches, buffers and tables, by their size
  dispatch           a cached call of x + 1
  gpu*               training in bf16 on a GPU: tokens per second, host time of a call, peak bytes
  inductor_latency   the same with regions through Inductor: cold, warm, by depth
  long_trace         compile time of functions of up to 50,000 operators
  plugin_cost        import of Switchgear, checks of a first run, a cached call with a plugin installed
  python_state       guards of a cached call; first calls with Python state, split, and inside torch.compile
  throughput         time per call, first call (cold and warm), saved and peak bytes, by workload and contestant
  whole_step         a training step of an MLP with AdamW
  work_curve*        steps finished by seconds since the first call, cold

workloads of throughput:
  {", ".join(WORKLOADS)}
contestants of throughput (marked *: only where named):
  {", ".join(item.name + "*" * item.on_request for item in CONTESTANTS)}
workloads of gpu:
  {", ".join(gpu_workloads.WORKLOADS)}
workloads of work_curve:
  {", ".join(work_curve.NAMES)}
workloads of budgets:
  {", ".join(budgets.NAMES)}
contestants of work_curve:
  {", ".join(work_curve.COMPILERS)}
contestants of gpu:
  {", ".join(item.name for item in gpu.contestants_on("cuda"))}

Ratios are medians over rounds in which every contestant is called in turn, with a 95 % interval.
Progress goes to stderr.
"""


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line; exit with status 2 if an option is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Switchgear beside its peers, in one run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"which: {', '.join(BENCHMARKS)} (default: all but {', '.join(ON_REQUEST)})",
    )
    parser.add_argument("--rounds", type=int, help="rounds of each benchmark; more are steadier")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement there as well")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw throughput, gpu or work_curve (.svg, .png); needs matplotlib",
    )
    chosen = parser.add_argument_group("of throughput, gpu, work_curve and budgets alone")
    chosen.add_argument(
        "--workloads", nargs="+", default=[], metavar="NAME", help="in whole or in part: gpt2/training, gpt2, inference"
    )
    chosen.add_argument("--contestants", nargs="+", default=[], metavar="NAME", help="eager is the baseline")
    chosen.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    chosen.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="of gpu; cpu goes with --quick")
    parser.add_argument(
        "--keep-memory",
        action="store_true",
        help="keep freed memory for the next tensor (glibc)",
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds takes a positive number")
    options.names = options.names or [name for name in BENCHMARKS if name not in ON_REQUEST]
    try:
        if "throughput" in options.names:
            throughput.chosen_workloads(options.workloads)
            throughput.chosen_contestants(options.contestants)
        if "work_curve" in options.names:
            work_curve.chosen(options.workloads)
        if "budgets" in options.names:
            budgets.chosen(options.workloads)
        if "gpu" in options.names:
            gpu.chosen_workloads(options.workloads)
            gpu.chosen_contestants(options.contestants, options.device)
    except ValueError as error:
        parser.error(str(error))
    if "gpu" in options.names and options.device == "cpu" and not options.quick:
        parser.error("--device cpu goes with --quick: the sizes of gpu are those of a GPU")
    if "gpu" in options.names and (reason := gpu.no_device(options.device)):
        parser.error(reason)
    if options.plot and not plot.AVAILABLE:
        parser.error("--plot needs matplotlib; install it with: pip install 'switchgear[plot]'")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks; all without names, except `ON_REQUEST`."""
    options = parsed(arguments)
    if options.keep_memory and not malloc.keeps_memory():
        malloc.start_again_keeping_memory(sys.argv[1:] if arguments is None else arguments)
    torch.set_num_threads(1)
    where = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread used",
        "memory": "kept" if malloc.keeps_memory() else "stock malloc",
    }
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    if os.environ.get("SWITCHGEAR_VERIFY"):
        print("SWITCHGEAR_VERIFY is set: Switchgear verifies every trace, and compiles slower for it", file=sys.stderr)
    report: dict[str, Any] = {"where": where}
    for name in options.names:
        benchmark, rounds = BENCHMARKS[name]
        if name in WITH_CHOICE:
            choice = {"workloads": options.workloads, "contestants": options.contestants, "quick": options.quick}
            choice |= {"device": options.device} if name == "gpu" else {}
            benchmark = functools.partial(benchmark, **choice)
            rounds = WITH_CHOICE[name] if options.quick else rounds
        result = benchmark(options.rounds or rounds)
        print(f"\n{result}", flush=True)
        report[name] = asdict(result) | ({"ratio": result.ratio} if hasattr(result, "ratio") else {})
        if name in WITH_CHOICE and name != "budgets" and options.plot:
            plot.write(result, options.plot, ", ".join(f"{key} {value}" for key, value in where.items()))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
