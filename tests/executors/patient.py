"""An executor whose compiled regions are found again by other processes: by empty files in a folder."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import switchgear as sg


class Patient(sg.FusionExecutor):
    """Fuses what is pointwise; files in its folder say what befalls it: `slow`, `dies`, `dies_once`, `full`, `gone`."""

    symbolic_sizes = True

    def __init__(self, folder: str) -> None:
        super().__init__("patient")
        self.folder = folder

    def _has(self, name: str) -> bool:
        return Path(self.folder, name).exists()

    def unavailable(self) -> str | None:
        return "its compiler is gone" if self._has("gone") else None

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        names = ("aten.mul.Tensor", "aten.sin.default", "aten.add.Tensor", "aten.cos.default")
        return None if bound_symbol.symbol.name in names else sg.Declined("not pointwise")

    def _file(self, region: sg.Trace) -> Path:
        return Path(self.folder, hashlib.sha256(region.canonical().encode()).hexdigest())

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        if self._has("dies") or self._has("dies_once"):
            Path(self.folder, "dies_once").unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        while self._has("slow"):
            time.sleep(0.05)
        if self._has("full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._file(region).write_text(f"{os.getpid()} {torch.get_default_dtype()}")
        return region.function()

    def load(self, region: sg.Trace) -> Callable[..., Any] | None:
        return region.function() if self._file(region).exists() else None

    def fingerprint(self) -> str:
        return self.folder
