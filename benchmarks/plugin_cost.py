"""The cost of plugins: import of Switchgear, checks of a first run, a cached call; a process for each measurement."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import Samples, table, verdict

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "plugins" / "switchgear-example"
#: The most seconds of `import switchgear` beyond `import torch`.
IMPORT_LIMIT = 0.2
#: The longest time of the first, checked run, as a fraction of compiling, the work itself included.
CHECKS_LIMIT = 0.05
#: The longest time of a cached call with a plugin installed, by a call without; the part above 1 allows for noise.
CALL_LIMIT = 1.02

IMPORT = """
import sys, time, torch
loaded, wall, cpu = set(sys.modules), time.perf_counter(), time.process_time()
import switchgear
seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
tops = {name.partition(".")[0] for name in set(sys.modules) - loaded} - set(sys.stdlib_module_names)
found = {**seconds, "packages": sorted(tops - {name.partition(".")[0] for name in loaded})}
"""

CHECKS = """
import time, torch, torch.nn.functional as F
import switchgear as sg
from switchgear_runtime import execution

class Fuses(sg.FusionExecutor):
    def supports(self, bound_symbol):
        return sg.Declined("left to the plugin") if "gelu" in bound_symbol.symbol.name else None

    def compile(self, region):
        return region.function()

def layers(x, w):
    for _ in range(12):
        x = F.gelu(x @ w, approximate="tanh").sin() * 2
    return x

spent, checked = {"wall": 0.0, "cpu": 0.0}, execution.run_checked

def timed(*args, **kwargs):
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        return checked(*args, **kwargs)
    finally:
        spent["wall"] += time.perf_counter() - wall
        spent["cpu"] += time.process_time() - cpu

execution.run_checked = timed
x, w = torch.rand(8, 8, requires_grad=True), torch.rand(8, 8, requires_grad=True)
jitted = sg.jit(layers, executors=["example", Fuses("fuses"), "torch"], compile="now")
wall, cpu = time.perf_counter(), time.process_time()
jitted(x, w).sum().backward()
whole = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
owners = {choice.owner for choice in sg.last_choices(jitted) if choice.kind == "execution"}
assert owners >= {"example", "fuses"}, owners
assert spent["wall"], "nothing was checked"
found = {clock: spent[clock] / (whole[clock] - spent[clock]) for clock in whole}
"""

CALL = """
import gc, time, torch
import switchgear as sg

jitted = sg.jit(lambda x: x + 1)
x = torch.arange(4.0)
for _ in range(100):
    jitted(x)

def per_call(clock):
    begin = clock()
    for _ in range(500):
        jitted(x)
    return (clock() - begin) / 500

gc.disable()
clocks = {"wall": time.perf_counter, "cpu": time.process_time}
found = {name: min(per_call(clock) for _ in range(25)) for name, clock in clocks.items()}
"""


@dataclass(frozen=True, slots=True)
class Result:
    """By wall and CPU time: the import alone and with a plugin; the share of checks; a cached call with and without."""

    imports: dict[str, list[Samples]]
    packages: list[str]
    checks: dict[str, list[float]]
    calls: dict[str, list[Samples]]

    @property
    def ratio(self) -> float:
        """The ratio of a cached call with a plugin installed to a call without, in CPU time."""
        return self.calls["cpu"][1].ratio_to(self.calls["cpu"][0])

    def __str__(self) -> str:
        lines = []
        for clock, samples in self.imports.items():
            lines += [f"import switchgear after torch, {clock}", table(samples, samples[0], unit="ms")]
            lines.append(verdict("seconds", samples[0].median, IMPORT_LIMIT))
        lines.append(f"  packages that it loads: {', '.join(self.packages)}")
        for clock, shares in self.checks.items():
            shown = f"{min(shares):.4f} to {max(shares):.4f}"
            lines.append(f"checked first run of a plugin's implementation and regions by compiling, {clock}, {shown}")
            lines.append(verdict("share", statistics.median(shares), CHECKS_LIMIT))
        for clock, samples in self.calls.items():
            lines += [f"cached call of x + 1, {clock}", table(samples, samples[0], unit="µs")]
            lines.append(verdict("ratio", samples[1].ratio_to(samples[0]), CALL_LIMIT))
        return "\n".join(lines)


def measured(program: str, *paths: str) -> dict[str, Any]:
    """Return the findings of a program in a separate process, with these folders on its path."""
    # load modules as bytecode, as after an installation by pip
    left_out = ("SWITCHGEAR_", "PYTHONDONTWRITEBYTECODE")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environment = {**variables, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", f"{program}\nimport json\nprint(json.dumps(found))"]
    process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def installed(folder: str) -> str:
    """Install the example plugin into a folder; return the folder."""
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", folder, str(PLUGIN)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return folder


def run(rounds: int) -> Result:
    """Measure, in interleaved rounds, each without the plugin and with the plugin."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in ("import", "import+", "checks", "call", "call+")}
    with tempfile.TemporaryDirectory() as folder:
        installed(folder)
        measured(IMPORT, folder)  # this run writes the bytecode
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            results["import"].append(measured(IMPORT))
            results["import+"].append(measured(IMPORT, folder))
            results["checks"].append(measured(CHECKS, folder))
            order = ("call", "call+") if number % 2 else ("call+", "call")
            for name in order:
                results[name].append(measured(CALL, *[folder] * (name == "call+")))
    packages = results["import"][0]["packages"]
    return Result(_samples(results, "import"), packages, _by_clock(results["checks"]), _samples(results, "call"))


def _by_clock(rounds: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {clock: [item[clock] for item in rounds] for clock in ("wall", "cpu")}


def _samples(results: dict[str, list[dict[str, Any]]], name: str) -> dict[str, list[Samples]]:
    without, installed = _by_clock(results[name]), _by_clock(results[f"{name}+"])
    return {
        clock: [Samples("no plugin", tuple(without[clock])), Samples("example installed", tuple(installed[clock]))]
        for clock in without
    }
