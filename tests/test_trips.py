"""Values pass through few files in a first call, and a hit enters few."""

from __future__ import annotations

import subprocess
import sys

from scripts import trips


def test_no_trip_is_over_its_limit() -> None:
    # in a process of its own, where no debugger or coverage tool traces
    command = [sys.executable, "-W", "ignore", "-m", "scripts.trips", "--routes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in figures[:3]] == ["argument tensor", "grad rule", "hit"]
    assert "Compiler.look_up" in done.stdout
    assert "Forward._apply" in done.stdout


def test_layers_are_those_of_the_contracts() -> None:
    order = ["errors.py", "ir/trace.py", "record/doors.py", "passes/pipeline.py"]
    numbers = [trips.layer(f"switchgear_core/{file}") for file in order]
    numbers += [trips.layer(f"{package}/x.py") for package in ("switchgear_frontend", "switchgear_runtime")]
    assert numbers == sorted(set(numbers))
    assert trips.layer("switchgear_torch/spelling.py") > numbers[-1]


def test_a_climb_is_a_stay_in_a_higher_layer_than_the_one_before() -> None:
    code, nothing = test_no_trip_is_over_its_limit.__code__, frozenset[int]()
    files = ["switchgear_runtime/a.py", "switchgear_core/ir/b.py", "switchgear_core/ir/b.py", "switchgear_runtime/a.py"]
    steps = [trips.Step(file, None, code, nothing, frozenset()) for file in files]
    assert [step.file for step in trips.stays(steps)] == [files[0], files[1], files[3]]
    assert trips.climbs(steps) == 1
