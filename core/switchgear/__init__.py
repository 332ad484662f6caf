"""Switchgear: an executor framework for PyTorch."""

from . import errors
from .aliasing import aliased_argument, storages, written_arguments
from .choice import Choice, Declined, Implementation, Saved
from .executor import Executor, FusionExecutor
from .fuel import Fuel
from .functional import grad, value_and_grad, vjp
from .handler import PASS, Call, Feature, Handler
from .hookspecs import PassPlacement, hookimpl
from .inspect.explain import explain
from .jit import jit, last_backward_traces, last_choices, last_saved, last_traces
from .passes.choose import RegionContext
from .passes.plugin_passes import PassContext
from .plugins import plugin_report
from .proxy import NumberProxy, TensorProxy
from .region import Region, RegionChoice
from .registry import Registry, Table
from .rules import get_grad, put_grad
from .symbol import BoundSymbol, Symbol
from .torch_internals import real_dispatch
from .trace import Trace

__all__ = [
    "PASS",
    "BoundSymbol",
    "Call",
    "Choice",
    "Declined",
    "Executor",
    "Feature",
    "Fuel",
    "FusionExecutor",
    "Handler",
    "Implementation",
    "NumberProxy",
    "PassContext",
    "PassPlacement",
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
    "plugin_report",
    "put_grad",
    "real_dispatch",
    "storages",
    "value_and_grad",
    "vjp",
    "written_arguments",
]
