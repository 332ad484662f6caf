"""A stranger's package works: one is installed with pip into a fresh environment, and its own tests pass there."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "plugins" / "switchgear-example"


def run(python: Path, *arguments: str | Path) -> str:
    """Output of a command in the fresh environment, which sees nothing of what this process has on its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SWITCHGEAR_"))}
    done = subprocess.run(
        [python, *arguments], cwd=PLUGIN, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with switchgear and the plugin; PyTorch and the like are those of this one."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    (folder,) = place.glob("lib/python*/site-packages")
    outer = [path for path in sys.path if path.endswith("-packages")]
    (folder / "outer.pth").write_text("\n".join(outer))
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--disable-pip-version-check")
    run(python, "-m", "pip", "install", *offline, ROOT / "core", ROOT, PLUGIN)
    return python


def test_tests_of_the_plugin_pass_where_it_is_installed(python: Path) -> None:
    summary = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider").splitlines()[-1]
    assert "passed" in summary
    assert "skipped" not in summary


def test_report_is_clean(python: Path) -> None:
    probe = "import switchgear; print(*[f'{s.name}={s.status}' for s in switchgear.plugin_report()])"
    report = dict(item.split("=") for item in run(python, "-c", probe).split())
    assert {name for name, status in report.items() if status == "loaded"} >= {"cublas", "example", "inductor", "torch"}
    assert set(report.values()) <= {"loaded", "unavailable"}
