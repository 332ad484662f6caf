"""Who runs a workload: eager, Switchgear in its configurations, and the peers."""

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
from switchgear.registry.memory import MEMORY


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to run a task.

    exact: its results are to be eager's to the bit. missing: why it cannot run here, or None. on_request: runs only if
    it is named, for it takes long.
    """

    name: str
    compile: Callable[[Task], Function]
    exact: bool = False
    missing: Callable[[], str | None] = lambda: None
    on_request: bool = False


def eager(task: Task) -> Function:
    """As it is written where nobody compiles."""
    return task.ordinary or task.function


def switchgear(task: Task, options: dict[str, Any]) -> Function:
    """Switchgear, with options of `sg.jit`."""
    jitted: Function = sg.jit(task.function, **options)
    return jitted


def refusal(options: dict[str, Any]) -> str | None:
    """Why `sg.jit` cannot take these options here."""
    try:
        sg.jit(lambda x: x, strict=True, **options)
    except (ExecutorUnavailable, UnknownExecutor, TypeError) as error:
        return str(error)
    return None


def configured(name: str, exact: bool = False, on_request: bool = False, **options: Any) -> Contestant:
    """Switchgear in one configuration."""
    compile_with = functools.partial(switchgear, options=options)
    return Contestant(name, compile_with, exact, functools.partial(refusal, options), on_request)


def compiled(task: Task, **options: Any) -> Function:
    """torch.compile."""
    function: Function = torch.compile(task.function, **options)
    return function


def no_compiler() -> str | None:
    """What Inductor needs on a CPU."""
    compiler = os.environ.get("CXX", "g++")
    return None if shutil.which(compiler) else f"Inductor needs a C++ compiler, and {compiler} is not here"


def torchscript(task: Task) -> Function:
    """TorchScript, by tracing: it cannot script what most models are written in."""
    with warnings.catch_warnings(), torch.set_grad_enabled(task.mode is not Mode.INFERENCE):
        warnings.simplefilter("ignore")  # deprecated, and it warns of every Python number
        function: Function = torch.jit.trace(task.function, task.arguments, check_trace=False)
    return function


def thunder(task: Task) -> Function:
    """Thunder, with its defaults."""
    function: Function = importlib.import_module("thunder").jit(task.function)
    return function


def not_importable(name: str) -> str | None:
    """Whether a peer is installed."""
    return None if importlib.util.find_spec(name) else f"{name} is not installed"


#: Switchgear's configurations, by name.
EXECUTORS: dict[str, dict[str, Any]] = {
    "switchgear": {"compile": "now"},
    "switchgear-torch": {"executors": ["torch"]},
    "switchgear-inductor": {"executors": ["inductor", "torch"]},
    "switchgear-auto": {"executors": "auto", "compile": "now"},
}
EXACT = "switchgear-torch"

#: All of them; the first is what the others are compared with.
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
