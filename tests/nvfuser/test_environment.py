"""The environment that `scripts/make_nvfuser_env.py` makes is what it says."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import switchgear as sg
from scripts.make_nvfuser_env import NVFUSER, PROBE, ROOT

pytestmark = pytest.mark.nvfuser


def test_versions() -> None:
    name, _, wanted = NVFUSER.partition("==")
    assert version(name) == wanted
    assert (torch.version.cuda or "").startswith("13.")


def test_nvfuser_translates() -> None:
    done = subprocess.run([sys.executable, str(PROBE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "translates under PyTorch" in done.stdout


@pytest.mark.discovery
def test_switchgear_is_this_checkout() -> None:
    assert Path(sg.__file__).resolve() == ROOT / "core" / "switchgear" / "__init__.py"
    assert "torch" in {plugin.name for plugin in sg.plugin_report() if plugin.status == "loaded"}
