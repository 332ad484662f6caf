"""Why nvFuser is not available, layer by layer."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import switchgear as sg
import switchgear_nvfuser
import switchgear_torch
from switchgear_core.registry.plugins import load as load_plugins
from switchgear_nvfuser import NvfuserExecutor, availability

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what is found: the package, PyTorch's version, its CUDA, a device."""

    def described(*, installed: bool = True, version: str = "2.11.0", cuda: str | None = "13.0", device: bool) -> None:
        spec = importlib.util.spec_from_loader("nvfuser_direct", None) if installed else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
        monkeypatch.setattr(torch, "__version__", version)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: device)
        monkeypatch.delenv("LD_BIND_NOW", raising=False)

    return described


def test_layers(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = NvfuserExecutor()
    machine(installed=False, device=True)
    wheel = "nvfuser-cu130-torch210==0.2.36.dev20260301"
    assert executor.unavailable() == f"nvFuser is not installed (pip install --no-deps --pre {wheel})"
    machine(installed=False, version="2.13.0+cpu", cuda=None, device=True)
    assert executor.unavailable() == "nvFuser is built for PyTorch 2.10 and 2.11, and this is 2.13.0+cpu"
    machine(version="2.11.0+cpu", cuda=None, device=True)
    assert executor.unavailable() == "nvFuser needs a PyTorch that is built with CUDA, and this is 2.11.0+cpu"
    machine(device=False)
    assert executor.unavailable() == "nvFuser translates, but cannot execute: there is no CUDA device"
    assert availability.untranslatable() is None
    machine(device=True)
    assert executor.unavailable() is None
    monkeypatch.setenv("LD_BIND_NOW", "1")
    assert executor.unavailable() == (
        "the variable LD_BIND_NOW is set, and nvFuser has a symbol that PyTorch 2.11 lacks; unset it"
    )


def test_with_a_runner_it_is_available_anywhere(machine: Any) -> None:
    machine(installed=False, device=False)
    assert NvfuserExecutor(runner=lambda definition: list).unavailable() is None


def test_load_says_why(machine: Any) -> None:
    machine(installed=False, device=False)
    availability.load.cache_clear()
    with pytest.raises(sg.errors.ExecutorUnavailable, match="executor nvfuser: nvFuser is not installed"):
        availability.load()


def test_an_import_that_fails_is_a_reason(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(device=False)
    monkeypatch.setitem(sys.modules, "nvfuser_direct", None)
    flags = sys.getdlopenflags()
    availability.load.cache_clear()
    with pytest.raises(sg.errors.ExecutorUnavailable, match="nvFuser cannot be imported"):
        availability.load()
    assert sys.getdlopenflags() == flags


def test_it_is_skipped_with_its_reason() -> None:
    if NvfuserExecutor().unavailable() is None:
        pytest.skip("nvFuser can execute here")
    x = torch.randn(3)
    with pytest.warns(sg.errors.PluginWarning, match="nvfuser is listed but skipped, it cannot run here: nvFuser "):
        jitted = sg.jit(lambda x: (x.sin() * 2).exp(), executors=[NvfuserExecutor(), "torch"])
    assert torch.equal(jitted(x), (x.sin() * 2).exp())
    assert "nvfuser: unavailable: nvFuser " in str(sg.explain(jitted).operators())
    with pytest.raises(sg.errors.ExecutorUnavailable, match="nvfuser cannot run here: nvFuser "):
        sg.jit(lambda x: x, executors=[NvfuserExecutor(), "torch"], strict=True)


def test_plugin() -> None:
    (executor,) = switchgear_nvfuser.switchgear_executors()
    (torch_executor,) = switchgear_torch.switchgear_executors()
    assert executor.name == "nvfuser"
    assert executor.priority < torch_executor.priority
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["switchgear"]["nvfuser"] == "switchgear_nvfuser"


@pytest.mark.parametrize("installed", [False, True])
def test_plugin_report(machine: Any, installed: bool) -> None:
    machine(installed=installed, device=False)
    entry = importlib.metadata.EntryPoint("nvfuser", "switchgear_nvfuser", "switchgear")
    (status,) = load_plugins([entry]).report
    reason = "nvFuser translates, but cannot execute: there is no CUDA device"
    if not installed:
        reason = "nvFuser is not installed (pip install --no-deps --pre nvfuser-cu130-torch210==0.2.36.dev20260301)"
    assert (status.status, status.error, status.executors) == ("unavailable", f"nvfuser: {reason}", ("nvfuser",))


def test_importing_it_and_asking_is_cheap() -> None:
    probe = "import sys, switchgear_nvfuser as s; s.NvfuserExecutor().unavailable(); "
    probe += "print([name for name in sys.modules if name.startswith(('nvfuser', 'torch._inductor.c'))])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.nvfuser
def test_where_nvfuser_is_installed_it_translates() -> None:
    availability.load.cache_clear()
    assert availability.untranslatable() is None
    assert availability.load().version().startswith("0.2.")
    if not torch.cuda.is_available():
        reason = "nvFuser translates, but cannot execute: there is no CUDA device"
        assert NvfuserExecutor().unavailable() == reason
