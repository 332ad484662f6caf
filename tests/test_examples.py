"""The demo does what it promises, and says so by its exit status."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEMO = str(ROOT / "examples" / "demo.py")


def run(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500, check=False)


def test_demo(tmp_path: Path) -> None:
    done = run(DEMO, "--steps", "2", "--executors", "torch", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    assert len(done.stdout.splitlines()) <= 30
    assert len(re.findall(r"^ +\d +(\d\.\d{8}) +\1  yes", done.stdout, re.MULTILINE)) == 4
    assert re.search(r"^executors=\['torch'\] +[\d.]+ +[\d.]+  torch \d+", done.stdout, re.MULTILINE)
    assert "softplus by first" in done.stdout
    assert "trace.html shows" in done.stdout
    assert (tmp_path / "trace.html").exists()
    assert "parameters are bit-identical to eager's" in done.stdout


def test_demo_shows_every_operator_and_stage(tmp_path: Path) -> None:
    done = run(DEMO, "--steps", "1", "--executors", "torch", "--full", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for model in ("GPT-2", "Llama"):
        assert re.search(rf"{model}: who runs which operator \(torch \d+, decomposition 1\)", done.stdout)
        assert f"{model}: whose rule differentiates it (derived" in done.stdout
    assert re.search(r"^def forward\([^)]*t_ln_1_weight", done.stdout, re.MULTILINE)
    backward = done.stdout.rpartition("\ndef backward(")[2]
    assert "rule: derived" in backward
    assert "forward: " in backward


def test_demo_help() -> None:
    done = run("examples/demo.py", "--help")
    assert done.returncode == 0
    assert "--steps" in done.stdout


def test_demo_refuses_what_it_cannot_do() -> None:
    assert run("examples/demo.py", "--steps", "0").returncode == 2
    done = run("examples/demo.py", "--executors", "nonesuch")
    assert done.returncode == 1
    assert "nonesuch" in done.stderr
    assert "Traceback" not in done.stderr


def test_benchmarks_refuse_an_unknown_name() -> None:
    done = run("-m", "benchmarks", "nonesuch")
    assert done.returncode == 2
    assert "compile_latency, decode, dispatch" in done.stderr
