"""Properties of a machine that affect speed: versions, threads, precision, the devices' models."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from switchgear_core import torch_private as internals


def surroundings(devices: Iterable[torch.device]) -> dict[str, str]:
    """Return the versions and properties of this machine that compiled code depends on.

    Args:
        devices: the devices of the program.

    Returns:
        A text for each property, by its name.
    """
    return {
        **machine(devices),
        "the number of threads": str(torch.get_num_threads()),
        "the precision of float32 products": internals.float32_precision(),
        "the use of deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
    }


def machine(devices: Iterable[torch.device]) -> dict[str, str]:
    """Return properties that no program changes: versions and models."""
    models = {f"device {device}": _model(device) for device in sorted(devices, key=str)}
    return {**_versions(), **models}


@cache
def _versions() -> dict[str, str]:
    return {"PyTorch": torch.__version__, "Switchgear": version("switchgear-core")}


@cache
def _model(device: torch.device) -> str:
    if device.type != "cpu":
        return str(getattr(getattr(torch, device.type, None), "get_device_name", str)(device))
    try:
        described = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        described = []
    names = [line.partition(":")[2].strip() for line in described if line.startswith("model name")]
    model = names[0] if names else platform.processor() or platform.machine()
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
