"""Every `sh` line of the pages runs, in an empty folder; the others are listed, each with its reason."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Lines that do not run here.
LEFT_OUT = {
    "make demo": "installs packages; `test_examples.py` runs the demo",
    "make test": "installs packages and runs all tests, this one too",
    "pip install torch": "installs",
    "pip install .": "installs; `scripts/check_wheel.py` does so in an empty environment",
    'pip install --editable switchgear-relu6x "switchgear[testing]"': "installs; `installed` stands in for it",
    "python -m benchmarks": "measures for an hour; `test_benchmarks.py` runs each benchmark",
    "python -m benchmarks throughput --workloads gpt2 mlp/step --contestants eager compile switchgear-torch": (
        "needs a C++ compiler, and measures for minutes"
    ),
    "python -m benchmarks throughput --json result.json --plot result.svg": "measures for an hour",
    "python -m benchmarks throughput --quick": "compiles for many minutes; `test_benchmarks.py` runs each workload",
    "python -m benchmarks gpu": "needs a GPU",
    "python -m scripts.gpu_check pack .gpu-pack": "downloads",
    "python3 -m scripts.gpu_check run .gpu-pack REPORT": "needs a GPU",
}
#: Lines that take long, next to faster ones of their kind.
SLOW = {"switchgear test mine", "switchgear test mine -- -x -k silu"}
PROGRAMS = {
    "switchgear": [sys.executable, "-m", "switchgear"],
    "pytest": [sys.executable, "-m", "pytest"],
    "python": [sys.executable],
    "python3": [sys.executable],
    "make": ["make", "-f", str(ROOT / "Makefile")],
}
#: The file of the user that `switchgear explain` reads.
TRAIN = """
import torch

def loss(x):
    return torch.sin(x).sum()

def batch():
    return torch.ones(3, requires_grad=True)
"""
#: The check of the user that `switchgear bisect` runs: it fails because of one region.
CHECK = """
import torch
import switchgear as sg

class Wrong(sg.FusionExecutor):
    def supports(self, bound_symbol):
        return None

    def compile(self, region):
        function = region.function()
        return lambda *inputs: tuple(result + 1 for result in function(*inputs))

def check(fuel):
    f = sg.jit(lambda x: torch.sin(x * 2), executors=[Wrong("wrong"), "torch"], fuel=fuel)
    x = torch.ones(3)
    torch.testing.assert_close(f(x), torch.sin(x * 2))
"""


def commands() -> list[str]:
    """The lines without their comments, each once."""
    lines = "".join(block for page in PAGES for block in FENCE.findall(page.read_text())).splitlines()
    return list(dict.fromkeys(re.split(r"\s+#", line)[0] for line in lines))


def run(command: str, folder: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    program, *arguments = shlex.split(command)
    path = os.pathsep.join(map(str, (*paths, ROOT, *filter(None, sys.path))))
    environment = os.environ | {"PYTHONPATH": path, "SWITCHGEAR_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(
        [*PROGRAMS[program], *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


def installed(name: str, folder: Path) -> Path:
    """Write the package of a plugin, and return the folder that has it as pip would install it."""
    assert run(f"switchgear new {name}", folder).returncode == 0
    source = folder / f"switchgear-{name}" / "src"
    info = source / f"switchgear_{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: switchgear-{name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[switchgear]\n{name} = switchgear_{name}\n")
    return source


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=[pytest.mark.slow] if command in SLOW else [])
        for command in commands()
        if command not in LEFT_OUT
    ],
)
def test_command_runs(command: str, tmp_path: Path) -> None:
    for name, text in (("train.py", TRAIN), ("check.py", CHECK), ("script.py", CHECK)):
        (tmp_path / name).write_text(text)
    (tmp_path / "plugins").mkdir()
    plugin = re.match(r"switchgear test (\w+)|pytest --switchgear-plugin (\w+)", command)
    paths = [installed(plugin[1] or plugin[2], tmp_path / "plugins")] if plugin else []
    if command.startswith("switchgear cache import"):
        assert run("switchgear cache export FILE", tmp_path).returncode == 0
    done = run(command, tmp_path, *paths)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lists_name_lines_of_the_pages() -> None:
    assert {*LEFT_OUT, *SLOW} <= {*commands()}
