"""Switchgear: an executor framework for PyTorch. Each name is imported when it is first used."""

import gc
import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchgear import capture, disk_cache, errors, executors, passes, testing
    from switchgear.functional import grad, value_and_grad, vjp
    from switchgear.jitting import jit
    from switchgear.options import defaults
    from switchgear.tags import checkpoint_name
    from switchgear_core.ir.choice import Declined
    from switchgear_core.ir.proxy import TensorProxy
    from switchgear_core.ir.symbol import BoundSymbol, Symbol
    from switchgear_core.ir.trace import Trace
    from switchgear_core.registry.executor import Executor, FusionExecutor
    from switchgear_core.registry.fuel import Fuel
    from switchgear_core.registry.hookspecs import hookimpl
    from switchgear_core.registry.parts import plugin_report
    from switchgear_core.registry.registry import Table
    from switchgear_core.registry.rules import get_grad, put_grad
    from switchgear_graphs import differentiate, export, joint, load_trace, override
    from switchgear_runtime.last_call import (
        last_backward_traces,
        last_choices,
        last_saved,
        last_traces,
    )
    from switchgear_tools.explain import cache_info, explain
    from switchgear_tools.plan import plan
    from switchgear_tools.profile import profile
    from switchgear_tools.ranges import ranges
    from switchgear_tools.waiting import wait

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
    "checkpoint_name",
    "defaults",
    "differentiate",
    "disk_cache",
    "errors",
    "executors",
    "explain",
    "export",
    "get_grad",
    "grad",
    "hookimpl",
    "jit",
    "joint",
    "last_backward_traces",
    "last_choices",
    "last_saved",
    "last_traces",
    "load_trace",
    "override",
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

_MODULES = {
    **{
        name: f"switchgear.{name}"
        for name in ("capture", "errors", "executors", "passes", "testing")
    },
    "disk_cache": "switchgear.disk_cache",
}
#: The modules of the other names.
_PLACES = {
    **dict.fromkeys(("grad", "value_and_grad", "vjp"), "switchgear.functional"),
    "jit": "switchgear.jitting",
    "checkpoint_name": "switchgear.tags",
    "defaults": "switchgear.options",
    "Declined": "switchgear_core.ir.choice",
    "TensorProxy": "switchgear_core.ir.proxy",
    **dict.fromkeys(("BoundSymbol", "Symbol"), "switchgear_core.ir.symbol"),
    "Trace": "switchgear_core.ir.trace",
    **dict.fromkeys(("Executor", "FusionExecutor"), "switchgear_core.registry.executor"),
    "Fuel": "switchgear_core.registry.fuel",
    "hookimpl": "switchgear_core.registry.hookspecs",
    "plugin_report": "switchgear_core.registry.parts",
    "Table": "switchgear_core.registry.registry",
    **dict.fromkeys(("get_grad", "put_grad"), "switchgear_core.registry.rules"),
    **dict.fromkeys(
        ("last_backward_traces", "last_choices", "last_saved", "last_traces"),
        "switchgear_runtime.last_call",
    ),
    **dict.fromkeys(("cache_info", "explain"), "switchgear_tools.explain"),
    "plan": "switchgear_tools.plan",
    "profile": "switchgear_tools.profile",
    "ranges": "switchgear_tools.ranges",
    "wait": "switchgear_tools.waiting",
    **dict.fromkeys(
        ("differentiate", "export", "joint", "load_trace", "override"), "switchgear_graphs"
    ),
}


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in __all__:
            errors = importlib.import_module("switchgear_core.errors")
            hint = errors.did_you_mean(name, __all__)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        is_collecting = gc.isenabled()
        gc.disable()  # half of the time would go to one collection of PyTorch's objects
        path = _MODULES.get(name) or _PLACES[name]
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name != "switchgear_graphs":
                raise
            raise AttributeError(f"sg.{name} needs {path}: pip install switchgear") from None
        finally:
            if is_collecting:
                gc.enable()
        value = module if name in _MODULES else getattr(module, name)
        if name == "jit":
            importlib.import_module("switchgear.options").document(value)
            # jitted functions call it, and capture cannot follow the import of a name
            __getattr__("checkpoint_name")
        return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
