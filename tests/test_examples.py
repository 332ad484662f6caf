"""The demo does what it promises, and says so by its exit status."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)


def test_demo() -> None:
    done = run("examples/demo.py", "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    for model in ("GPT-2", "Llama"):
        assert f"{model}: 2 training steps" in done.stdout
        assert re.search(rf"{model}: who runs which operator \(torch \d+, decomposition 1\)", done.stdout)
        assert f"{model}: whose rule differentiates it (derived" in done.stdout
    assert len(re.findall(r"^ +\d +(\d\.\d{8}) +\1  yes", done.stdout, re.MULTILINE)) == 4
    assert done.stdout.count("trained parameters: all bit-equal") == 2
    assert re.search(r"^def forward\(t_0, .*t_ln_1_weight", done.stdout, re.MULTILINE)
    backward = done.stdout.partition("\ndef backward(")[2]
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
