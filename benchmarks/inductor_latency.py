"""The time to the first training result with regions through Inductor: a process each, without caches and with them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import switchgear as sg
from benchmarks.compile_latency import LAYERS, first_result, per_layer
from benchmarks.measure import Samples, table, verdict
from switchgear.disk_cache import CACHE_VARIABLE

#: The longest times, as fractions of the peer's: without caches on disk, and with the first process's caches.
COLD_LIMIT, WARM_LIMIT = 0.8, 0.5
#: The largest growth of the time per layer from the first to the second stretch of `DEPTHS`, as a fraction.
GROWTH = 0.2
DEPTHS = (LAYERS, 30, 48)
SWITCHGEAR, PEER = "switchgear", "torch.compile"


@dataclass(frozen=True, slots=True)
class Result:
    """`cold` and `warm`: Switchgear at each of `DEPTHS`, then torch.compile at the first."""

    cold: list[Samples]
    warm: list[Samples]

    @property
    def ratio(self) -> float:
        """The ratio of Switchgear's cold time to torch.compile's."""
        return self.cold[0].ratio_to(self.cold[-1])

    @property
    def warm_ratio(self) -> float:
        """The ratio of Switchgear's warm time to torch.compile's."""
        return self.warm[0].ratio_to(self.warm[-1])

    def __str__(self) -> str:
        lines = ["first training result of a GPT-2, width 32, through Inductor"]
        for state, samples in (("cold", self.cold), ("warm", self.warm)):
            first, second = per_layer(samples[:-1], DEPTHS)
            lines += [
                state,
                table(samples, samples[-1], unit="s"),
                "  per layer: {:.1f} ms from {} to {}, {:.1f} ms from {} to {}".format(
                    1e3 * first, *DEPTHS[:2], 1e3 * second, *DEPTHS[1:]
                ),
                verdict("growth", second / first - 1, GROWTH),
            ]
        lines += [verdict("cold ratio", self.ratio, COLD_LIMIT), verdict("warm ratio", self.warm_ratio, WARM_LIMIT)]
        return "\n".join(lines)


def switchgear(model: torch.nn.Module) -> Callable[..., Any]:
    """Compile with Switchgear, the candidate."""
    jitted: Callable[..., Any] = sg.jit(model, executors=["inductor", "torch"])
    return jitted


def inductor(model: torch.nn.Module) -> Callable[..., Any]:
    """Compile with torch.compile, the peer."""
    compiled: Callable[..., Any] = torch.compile(model)
    return compiled


COMPILERS = {SWITCHGEAR: switchgear, PEER: inductor}


def run(rounds: int) -> Result:
    """Measure, in interleaved rounds."""
    lanes = [*((SWITCHGEAR, depth) for depth in DEPTHS), (PEER, LAYERS)]
    seconds: dict[tuple[str, int], list[tuple[float, float]]] = {lane: [] for lane in lanes}
    for number in range(rounds):
        for name, layers in lanes:
            print(f"round {number + 1} of {rounds}: {name}, {layers} layers", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                seconds[name, layers].append((in_a_process(name, layers, folder), in_a_process(name, layers, folder)))
    names = {lane: f"{lane[0]}, {lane[1]} layers" for lane in lanes}
    cold, warm = (
        [Samples(names[lane], tuple(pair[state] for pair in pairs)) for lane, pairs in seconds.items()]
        for state in (0, 1)
    )
    return Result(cold, warm)


def in_a_process(name: str, layers: int, folder: str) -> float:
    """Return `first_result` of a separate process whose caches are below a folder."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor"), CACHE_VARIABLE: str(Path(folder) / "own")}
    command = [sys.executable, "-m", "benchmarks.inductor_latency", name, str(layers)]
    process = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True)
    return float(process.stdout)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(first_result(COMPILERS[sys.argv[1]], int(sys.argv[2])))
