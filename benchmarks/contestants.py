"""Contestants that run a workload: eager, Switchgear in its configurations, and the peers."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import switchgear as sg
from benchmarks.workloads import Function, Mode, Task
from switchgear.errors import ExecutorUnavailable, UnknownExecutor
from switchgear_memory import MEMORY


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to run a task.

    exact: whether results must be bit-identical to eager's. missing: returns the reason why the contestant cannot run
    here, or None. on_request: whether to run only if named, because a run takes long.
    """

    name: str
    compile: Callable[[Task], Function]
    exact: bool = False
    missing: Callable[[], str | None] = lambda: None
    on_request: bool = False


def eager(task: Task) -> Function:
    """Return the task's function as written for eager mode."""
    return task.ordinary or task.function


def switchgear(task: Task, options: dict[str, Any]) -> Function:
    """Compile with Switchgear, with options of `sg.jit`."""
    jitted: Function = sg.jit(task.function, **options)
    return jitted


def refusal(options: dict[str, Any]) -> str | None:
    """Return the reason why `sg.jit` refuses these options here; None if accepted."""
    try:
        sg.jit(lambda x: x, strict=True, **options)
    except (ExecutorUnavailable, UnknownExecutor, TypeError) as error:
        return str(error)
    return None


def configured(name: str, exact: bool = False, on_request: bool = False, **options: Any) -> Contestant:
    """Return Switchgear in one configuration."""
    compile_with = functools.partial(switchgear, options=options)
    return Contestant(name, compile_with, exact, functools.partial(refusal, options), on_request)


def compiled(task: Task, **options: Any) -> Function:
    """Compile with torch.compile."""
    function: Function = torch.compile(task.function, **options)
    return function


def no_compiler() -> str | None:
    """Return why Inductor cannot run on a CPU here; None if a C++ compiler is installed."""
    compiler = os.environ.get("CXX", "g++")
    return None if shutil.which(compiler) else f"Inductor needs a C++ compiler, and {compiler} is not here"


def torchscript(task: Task) -> Function:
    """Trace with TorchScript: most models use Python that TorchScript cannot script."""
    with warnings.catch_warnings(), torch.set_grad_enabled(task.mode is not Mode.INFERENCE):
        warnings.simplefilter("ignore")  # tracing is deprecated, and warns of every Python number
        function: Function = torch.jit.trace(task.function, task.arguments, check_trace=False)
    return function


def thunder(task: Task) -> Function:
    """Compile with Thunder, with its defaults."""
    function: Function = importlib.import_module("thunder").jit(task.function)
    return function


def not_importable(name: str) -> str | None:
    """Return a reason if a peer is not installed, else None."""
    return None if importlib.util.find_spec(name) else f"{name} is not installed"


#: Switchgear's configurations, by name.
EXECUTORS: dict[str, dict[str, Any]] = {
    "switchgear": {"compile": "now"},
    "switchgear-torch": {"executors": ["torch"]},
    "switchgear-inductor": {"executors": ["inductor", "torch"]},
    "switchgear-auto": {"executors": "auto", "compile": "now"},
}
EXACT = "switchgear-torch"

#: All contestants; the first is the baseline of the others.
CONTESTANTS = (
    Contestant("eager", eager),
    Contestant("compile", compiled, missing=no_compiler),
    Contestant(
        "compile-max-autotune",
        functools.partial(compiled, mode="max-autotune"),
        missing=no_compiler,
        on_request=True,
    ),
    Contestant("aot-eager", functools.partial(compiled, backend="aot_eager")),
    *(configured(name, name == EXACT, **options) for name, options in EXECUTORS.items()),
    *(
        configured(f"{name}-{memory}", name == EXACT, on_request=True, memory=memory, **options)
        for name, options in EXECUTORS.items()
        for memory in MEMORY[1:]
    ),
    Contestant("torchscript", torchscript),
    Contestant("thunder", thunder, missing=functools.partial(not_importable, "thunder")),
)
