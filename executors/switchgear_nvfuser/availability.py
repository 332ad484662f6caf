"""Availability of nvFuser: installed, able to translate, able to execute; checked without its slow import."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import warnings
from typing import Any

import torch

import switchgear as sg

#: The PyTorch of nvFuser's last wheels, and the next version, without one symbol: see `load`.
TORCH_VERSIONS = ("2.10", "2.11")
WHEEL = "nvfuser-cu130-torch210==0.2.36.dev20260301"


def untranslatable() -> str | None:
    """Return why nvFuser cannot even define fusions here, or None."""
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in TORCH_VERSIONS:
        return f"nvFuser is built for PyTorch {' and '.join(TORCH_VERSIONS)}, and this is {torch.__version__}"
    if torch.version.cuda is None:
        return f"nvFuser needs a PyTorch that is built with CUDA, and this is {torch.__version__}"
    # last: do not advise an installation that would not work
    if importlib.util.find_spec("nvfuser_direct") is None:
        return f"nvFuser is not installed (pip install --no-deps --pre {WHEEL})"
    if os.environ.get("LD_BIND_NOW"):
        return "the variable LD_BIND_NOW is set, and nvFuser has a symbol that PyTorch 2.11 lacks; unset it"
    return None


def inexecutable() -> str | None:
    """Return why nvFuser cannot run anything here, or None."""
    reason = untranslatable()
    if reason is None and not torch.cuda.is_available():
        return "nvFuser translates, but cannot execute: there is no CUDA device"
    return reason


@functools.cache
def load() -> Any:
    """Import and return the module `nvfuser_direct`."""
    reason = untranslatable()
    if reason is not None:
        raise sg.errors.ExecutorUnavailable(f"executor nvfuser: {reason}")
    # Built for PyTorch 2.10, nvFuser refers to a constructor (c10::MessageLogger) missing in 2.11. The constructor runs
    # only in several processes that find no port. So the symbol is bound lazily, and a port is set.
    os.environ.setdefault("NVFUSER_MASTER_PORT", "29542")
    flags = sys.getdlopenflags()
    sys.setdlopenflags((flags & ~os.RTLD_NOW) | os.RTLD_LAZY)
    try:
        with warnings.catch_warnings():
            # warnings of its own imports do not concern users
            warnings.simplefilter("ignore")
            import nvfuser_direct  # noqa: PLC0415 - takes a second, and is not to be had everywhere
    except ImportError as error:
        raise sg.errors.ExecutorUnavailable(f"executor nvfuser: nvFuser cannot be imported: {error}") from error
    finally:
        sys.setdlopenflags(flags)
    return nvfuser_direct


def installed_version() -> str:
    """Return nvFuser's version, or an empty text if it cannot be loaded."""
    try:
        return str(load().version())
    except sg.errors.ExecutorUnavailable:
        return ""
