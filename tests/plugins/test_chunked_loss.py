"""The tests of `plugins/switchgear-chunked-loss`, where it is installed as an author's editable install has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLUGIN = Path(__file__).parents[2] / "plugins" / "switchgear-chunked-loss"


def test_tests_of_the_plugin_pass(tmp_path: Path) -> None:
    info = tmp_path / "switchgear_chunked_loss-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: switchgear-chunked-loss\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[switchgear]\nchunked_loss = switchgear_chunked_loss\n")
    path = os.pathsep.join([str(PLUGIN / "src"), str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=PLUGIN, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "27 passed" in done.stdout
