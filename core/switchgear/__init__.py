"""Switchgear: an executor framework for PyTorch."""

import gc
import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchgear_tools.explain import CacheInfo, cache_info, explain
    from switchgear_tools.explanation import Explanation
    from switchgear_tools.plan import Plan, PlannedMemory, plan
    from switchgear_tools.profile import Profile, profile
    from switchgear_tools.ranges import ranges
    from switchgear_tools.waiting import wait

_IS_COLLECTING = gc.isenabled()
gc.disable()  # half of the time would go to one collection among all that PyTorch holds
try:
    from switchgear import disk_cache, errors
    from switchgear.capture.call import Call, Operation
    from switchgear.capture.handler import PASS, Feature, Handler
    from switchgear.capture.recorder import Recorder
    from switchgear.functional import grad, value_and_grad, vjp
    from switchgear.ir.aliasing import aliased_argument, storages, written_arguments
    from switchgear.ir.choice import Choice, Declined, Implementation, Saved
    from switchgear.ir.lines import Lines, Match, argument, composite, leaf_of
    from switchgear.ir.proxy import NumberProxy, TensorProxy
    from switchgear.ir.symbol import BoundSymbol, Symbol
    from switchgear.ir.trace import Trace
    from switchgear.jit import jit, last_backward_traces, last_choices, last_saved, last_traces
    from switchgear.machine import surroundings
    from switchgear.options import defaults
    from switchgear.progress import Progress
    from switchgear.torch_private import real_dispatch
    from switchgear.who.executor import Executor, FusionExecutor
    from switchgear.who.fuel import Fuel
    from switchgear.who.hookspecs import PassContext, PassPlacement, RegionContext, hookimpl
    from switchgear.who.plugins import plugin_report
    from switchgear.who.region import Region, RegionChoice
    from switchgear.who.registry import Registry, Table
    from switchgear.who.rules import get_grad, put_grad
finally:
    if _IS_COLLECTING:
        gc.enable()

__version__ = version("switchgear")

__all__ = [
    "PASS",
    "BoundSymbol",
    "CacheInfo",
    "Call",
    "Choice",
    "Declined",
    "Executor",
    "Explanation",
    "Feature",
    "Fuel",
    "FusionExecutor",
    "Handler",
    "Implementation",
    "Lines",
    "Match",
    "NumberProxy",
    "Operation",
    "PassContext",
    "PassPlacement",
    "Plan",
    "PlannedMemory",
    "Profile",
    "Progress",
    "Recorder",
    "Region",
    "RegionChoice",
    "RegionContext",
    "Registry",
    "Saved",
    "Symbol",
    "Table",
    "TensorProxy",
    "Trace",
    "aliased_argument",
    "argument",
    "cache_info",
    "composite",
    "defaults",
    "disk_cache",
    "errors",
    "explain",
    "get_grad",
    "grad",
    "hookimpl",
    "jit",
    "last_backward_traces",
    "last_choices",
    "last_saved",
    "last_traces",
    "leaf_of",
    "plan",
    "plugin_report",
    "profile",
    "put_grad",
    "ranges",
    "real_dispatch",
    "storages",
    "surroundings",
    "value_and_grad",
    "vjp",
    "wait",
    "written_arguments",
]

#: Modules of the tools by the names that they are offered under here; each is imported when it is first asked for.
_TOOLS = {
    **dict.fromkeys(("CacheInfo", "cache_info", "explain"), "explain"),
    "Explanation": "explanation",
    **dict.fromkeys(("Plan", "PlannedMemory", "plan"), "plan"),
    **dict.fromkeys(("Profile", "profile"), "profile"),
    "ranges": "ranges",
    "wait": "waiting",
}


def __getattr__(name: str) -> object:
    if name == "testing":
        return importlib.import_module("switchgear.testing")
    if name not in _TOOLS:
        hint = errors.did_you_mean(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(f"switchgear_tools.{_TOOLS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "testing"])
