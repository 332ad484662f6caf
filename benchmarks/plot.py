"""Plots: the times of `throughput` and `gpu` as bars, the steps of `work_curve` as lines; needs matplotlib."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from benchmarks import gpu, throughput, work_curve
from benchmarks.throughput import BASELINE

if importlib.util.find_spec("matplotlib"):
    from matplotlib.figure import Figure

    AVAILABLE = True
else:
    AVAILABLE = False


#: Contestants of `work_curve`, as named in a legend.
_LEGEND = {"compile": "torch.compile", "now": "Switchgear, compile='now'", "default": "Switchgear"}


def write(result: throughput.Result | gpu.Result | work_curve.Result, path: Path, title: str) -> None:
    """Write the figure of a benchmark; the file's suffix sets the format."""
    if isinstance(result, work_curve.Result):
        write_curves(result, path, title)
    else:
        write_bars(result, path, title)


def write_curves(result: work_curve.Result, path: Path, title: str) -> None:
    """Write a picture for each workload: steps by seconds since the first call, a line for each contestant."""
    names = result.workloads
    figure = Figure(figsize=(5 * min(len(names), 3), 4 * -(-len(names) // 3)), layout="constrained")
    for index, name in enumerate(names):
        axes = figure.add_subplot(-(-len(names) // 3), min(len(names), 3), index + 1)
        for contestant, curve in result.of(name).items():
            every = max(1, len(curve.ends) // 400)  # 400 points are enough for a picture
            ends, counts = curve.ends[::every], range(1, len(curve.ends) + 1, every)
            axes.step([0.0, *ends], [0, *counts], where="post", label=_LEGEND.get(contestant, contestant))
        axes.set_title(name)
        axes.set_xlabel("seconds since the first call")
        axes.set_ylabel("training steps finished")
        axes.legend()
    figure.suptitle(f"How many steps are done after so many seconds? Higher is better. {title}", fontsize="small")
    figure.savefig(path)


def write_bars(result: throughput.Result | gpu.Result, path: Path, title: str) -> None:
    """Write a group of bars for each workload: time by eager's with its 95 % interval, in the format of the suffix."""
    comparisons: list[throughput.Comparison | gpu.Comparison] = [*result.comparisons]
    names = dict.fromkeys(item.contestant for each in comparisons for item in each.measured)
    names.pop(BASELINE, None)
    figure = Figure(figsize=(3 + 0.9 * len(comparisons), 5), layout="constrained")
    axes = figure.subplots()
    thickness = 0.8 / max(len(names), 1)
    for index, name in enumerate(names):
        bars = [
            (place + index * thickness, item.to_eager)
            for place, each in enumerate(comparisons)
            for item in each.measured
            if item.contestant == name and item.to_eager is not None
        ]
        axes.bar(
            [place for place, _ in bars],
            [ratio.value for _, ratio in bars],
            thickness,
            yerr=[[r.value - r.low for _, r in bars], [r.high - r.value for _, r in bars]],
            label=name,
        )
    axes.axhline(1, color="black", linewidth=1)
    axes.set_yscale("log")
    axes.set_ylabel(f"time ÷ {BASELINE}'s (log)")
    middle = thickness * (len(names) - 1) / 2
    axes.set_xticks(
        [place + middle for place in range(len(comparisons))],
        [item.workload for item in comparisons],
        rotation=30,
        ha="right",
    )
    axes.set_title(title)
    axes.legend()
    figure.savefig(path)
