"""The tests of `plugins/switchgear-triton`, by Triton's interpreter, where it is installed as its author has it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "plugins" / "switchgear-triton"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    info = tmp_path / "switchgear_triton-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: switchgear-triton\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[switchgear]\ntriton = switchgear_triton\n")
    path = os.pathsep.join([str(PLUGIN / "src"), str(tmp_path), *sys.path])
    return {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make test-triton")
def test_tests_of_the_plugin_pass(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=PLUGIN, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


WITHOUT = """
import sys
from importlib.machinery import PathFinder

sys.modules["triton"] = None
find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *args: None if name == "triton" else find_spec(name, *args)

import torch
import torch.nn.functional as F
import switchgear as sg

print(*[status.error for status in sg.plugin_report() if status.name == "triton"])
x = torch.linspace(-1, 1, 6)
jitted = sg.jit(F.rms_norm, executors=["triton", "torch"])
print(torch.equal(jitted(x, (6,), None, 1e-5), F.rms_norm(x, (6,), None, 1e-5)))
"""


def test_where_triton_is_not_installed(environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reason, equal = done.stdout.splitlines()
    assert "Triton is not installed" in reason
    assert equal == "True"
