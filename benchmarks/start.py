"""The cost of a process before its first result: imports, and first calls; each measured in a fresh process."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Samples, table, verdict
from switchgear.disk_cache import CACHE_VARIABLE

#: The most seconds: importing Switchgear beyond torch, and the first call of one linear layer with `["torch"]`.
IMPORT_LIMIT, FIRST_LIMIT = 0.15, 0.3
#: The longest time of the default's first call by that of `["torch"]`, and of its warm first call by torch.compile's.
DEFAULT_LIMIT, WARM_LIMIT = 1.15, 0.5
LINEAR = "torch.nn.Linear(4, 4)"
MLP = "torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 4))"
INPUTS = {LINEAR: "torch.ones(2, 4)", MLP: "torch.ones(8, 64)"}
PROGRAM = """
import json, time, torch
model, x = {model}, {inputs}
def now():
    return time.perf_counter(), time.process_time()
times = [now()]
{prepare}
times.append(now())
called = {compile}
called(x)
times.append(now())
{end}
print(json.dumps(times))
"""
SWITCHGEAR = "import switchgear as sg"
TORCH = "sg.jit(model, executors=['torch'])"
#: By name: the model, the import before, and the code that compiles the model.
CALLS = {
    '["torch"], a linear layer': (LINEAR, SWITCHGEAR, TORCH),
    "default, a linear layer": (LINEAR, SWITCHGEAR, "sg.jit(model)"),
    '["torch"], two layers and GELU': (MLP, SWITCHGEAR, TORCH),
    "default, cold": (MLP, SWITCHGEAR, "sg.jit(model)"),
    "default, warm": (MLP, SWITCHGEAR, "sg.jit(model)"),
    "torch.compile, warm": (MLP, "", "torch.compile(model)"),
}


@dataclass(frozen=True, slots=True)
class Result:
    """`imports`: Switchgear's beyond torch; `calls`: the first calls by `CALLS`; by the clock and by the processor."""

    imports: tuple[Samples, Samples]
    calls: tuple[list[Samples], list[Samples]]

    @property
    def ratio(self) -> float:
        """The ratio of the default's warm first call to torch.compile's, by the clock."""
        *_, warm, peer = self.calls[0]
        return warm.ratio_to(peer)

    def __str__(self) -> str:
        lines = []
        for kind, imported, calls in zip(("clock", "processor"), self.imports, self.calls, strict=True):
            linear, default, mlp, cold, warm, peer = calls
            lines += [
                f"by the {kind}, seconds",
                table([imported, *calls], linear, unit="s"),
                verdict("import beyond torch", imported.median, IMPORT_LIMIT),
                verdict("first call of a linear layer", linear.median, FIRST_LIMIT),
                verdict('default by ["torch"], a linear layer', default.ratio_to(linear), DEFAULT_LIMIT),
                verdict('default by ["torch"], two layers and GELU', cold.ratio_to(mlp), DEFAULT_LIMIT),
                verdict("warm by torch.compile's", warm.ratio_to(peer), WARM_LIMIT),
            ]
        return "\n".join(lines)


def measured(name: str, caches: Path, *, end: str = "") -> list[tuple[float, float]]:
    """Return the seconds of the import and of the first call in a process, each by the clock and by the processor."""
    model, prepare, compile = CALLS[name]
    program = PROGRAM.format(model=model, inputs=INPUTS[model], prepare=prepare, compile=compile, end=end)
    folders = {CACHE_VARIABLE: str(caches / "switchgear"), "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor")}
    environment = {key: value for key, value in os.environ.items() if key != "SWITCHGEAR_COMPILE"} | folders
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    times = json.loads(process.stdout.splitlines()[-1])
    return [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(times)]


def run(rounds: int) -> Result:
    """Measure each in turn: cold calls with empty caches, warm calls with the caches of an earlier process."""
    imports: list[tuple[float, float]] = []
    calls: dict[str, list[tuple[float, float]]] = {name: [] for name in CALLS}
    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder, "warm")
        measured("default, warm", warm, end="sg.wait(called)")
        measured("torch.compile, warm", warm)
        for number in range(rounds):
            for name, times in calls.items():
                caches = warm if name.endswith("warm") else Path(folder, f"{number}{len(times)}{name[:7]}")
                imported, call = measured(name, caches)
                times.append(call)
                if name == next(iter(CALLS)):
                    imports.append(imported)
    clock, processor = (
        [Samples(name, tuple(pair[kind] for pair in times)) for name, times in calls.items()] for kind in (0, 1)
    )
    first, second = (Samples("import switchgear", tuple(pair[kind] for pair in imports)) for kind in (0, 1))
    return Result((first, second), (clock, processor))
