"""Switchgear: an executor framework for PyTorch."""

import gc
import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchgear import testing
    from switchgear_tools.explain import cache_info, explain
    from switchgear_tools.plan import plan
    from switchgear_tools.profile import profile
    from switchgear_tools.ranges import ranges
    from switchgear_tools.waiting import wait

_IS_COLLECTING = gc.isenabled()
gc.disable()  # half of the time would go to one collection of PyTorch's objects
try:
    from switchgear import capture, errors, executors, passes
    from switchgear.functional import grad, value_and_grad, vjp
    from switchgear.jit import jit, last_backward_traces, last_choices, last_saved, last_traces
    from switchgear.options import defaults
    from switchgear_core import disk_cache
    from switchgear_core.ir.choice import Declined
    from switchgear_core.ir.proxy import TensorProxy
    from switchgear_core.ir.symbol import BoundSymbol, Symbol
    from switchgear_core.ir.trace import Trace
    from switchgear_core.registry.executor import Executor, FusionExecutor
    from switchgear_core.registry.fuel import Fuel
    from switchgear_core.registry.hookspecs import hookimpl
    from switchgear_core.registry.plugins import plugin_report
    from switchgear_core.registry.registry import Table
    from switchgear_core.registry.rules import get_grad, put_grad
finally:
    if _IS_COLLECTING:
        gc.enable()

__version__ = version("switchgear-core")

__all__ = [
    "BoundSymbol",
    "Declined",
    "Executor",
    "Fuel",
    "FusionExecutor",
    "Symbol",
    "Table",
    "TensorProxy",
    "Trace",
    "cache_info",
    "capture",
    "defaults",
    "disk_cache",
    "errors",
    "executors",
    "explain",
    "get_grad",
    "grad",
    "hookimpl",
    "jit",
    "last_backward_traces",
    "last_choices",
    "last_saved",
    "last_traces",
    "passes",
    "plan",
    "plugin_report",
    "profile",
    "put_grad",
    "ranges",
    "testing",
    "value_and_grad",
    "vjp",
    "wait",
]

#: Modules by the names offered here; each is imported on first use.
_LATER = {
    **dict.fromkeys(("cache_info", "explain"), "switchgear_tools.explain"),
    "plan": "switchgear_tools.plan",
    "profile": "switchgear_tools.profile",
    "ranges": "switchgear_tools.ranges",
    "wait": "switchgear_tools.waiting",
}


def __getattr__(name: str) -> object:
    if name == "testing":
        return importlib.import_module("switchgear.testing")
    if name not in _LATER:
        hint = errors.did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    return globals().setdefault(name, getattr(importlib.import_module(_LATER[name]), name))


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
