"""Splitting: TorchDynamo splits a function that capture refuses, and each graph is compiled separately."""

from __future__ import annotations

import operator
import re
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import torch
from torch import fx

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.record.attempts import leaves_nothing
from switchgear_core.record.user_code import is_own_file
from switchgear_dynamo.doubts import Doubts, is_library, of_code
from switchgear_dynamo.graphs import graph_runner
from switchgear_dynamo.torch_private import taken_apart, traced_code
from switchgear_runtime.splitting import CompileGraph, Graph

#: Seen with PyTorch 2.13: TorchDynamo continues with the previous dimensions of the tensor.
_RESHAPES = {"unsqueeze_", "squeeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "resize_"}


#: The limit on conversions of one code object, for different kinds of calls.
_CONVERSIONS = 16

#: The number of split calls before any is timed, and the number of timed calls per variant.
WARM, TIMED = 32, 16


class Split:
    """A function as split by TorchDynamo.

    Calls without gradients on a CPU run the parts or the original function, as soon as the faster is known.
    """

    def __init__(
        self,
        function: Callable[..., object],
        compile_graph: CompileGraph,
        dynamic: bool | None,
        call: object = (),
        name: str = "",
    ) -> None:
        self.graphs: list[Graph] = []
        self.breaks: Counter[str] = Counter()
        self.name = name or getattr(function, "__qualname__", "")
        self._compile_graph = compile_graph
        self._function = function
        self._dynamic = dynamic
        self._doubts = Doubts(function, call)
        #: The reason not to split calls from now on, or an empty text.
        self.doubt = self._doubts.reason
        self._conversions: Counter[types.CodeType] = Counter()
        self._own: tuple[object, object] | None = None
        self._parts: Callable[..., object]
        self._calls = 0
        self._seconds: tuple[list[float], list[float]] = [], []
        #: The time of the parts divided by the time of the original function, once known.
        self.ratio: float | None = None

    def trust(self) -> str:
        """Return why a call is not split, before the call runs; else empty."""
        self.doubt = self.doubt or self._doubts.changed()
        return self.doubt

    def run(self, *args: object, **kwargs: object) -> object:
        """Run the parts, or the original function where that was faster or global module hooks exist.

        TorchDynamo does not notice global hooks that are added or removed after the first call.
        """
        if self.doubt or any(internals.global_module_hooks()):
            return self._function(*args, **kwargs)
        own = getattr(self._function, "__func__", self._function)
        state = getattr(own, "__code__", None), getattr(own, "__defaults__", None)
        if self._own is None or any(map(operator.is_not, state, self._own)):
            parts = taken_apart(
                _with_own_code(self._function),
                self._graph,
                self._note,
                self._dynamic,
                leaves_nothing,
                self._distrusts,
            )
            self._parts = parts
            self._own = state  # last, because an interrupt may come before
        if torch.is_grad_enabled():
            return self._parts(*args, **kwargs)
        if self.ratio is None:
            return self._timed(*args, **kwargs)
        return (self._function if self.ratio > 1 else self._parts)(*args, **kwargs)

    def _note(self, reason: str) -> None:
        self.breaks[reason] += 1

    def _distrusts(self, frame: types.FrameType | None) -> bool:
        """Check whether a frame runs unconverted; the frame is about to be converted, or was just now (None)."""
        if not self.doubt and frame is not None:
            code, values = frame.f_code, frame.f_locals.values()
            self._conversions[code] += 1
            if self._conversions[code] > _CONVERSIONS:
                name = re.sub(r"torch_dynamo_resume_in_(\w+)_at_\d+", r"\1", code.co_qualname)
                self.doubt = (
                    f"{name} ({code.co_filename}:{code.co_firstlineno}) was taken apart for {_CONVERSIONS} "
                    "kinds of calls, and there are more; keep the arguments and the values it reads as they are"
                )
            else:
                modules = [one for one in values if isinstance(one, torch.nn.Module)]
                roots = modules if is_library(code) else [code, *values]
                self.doubt = Doubts(*roots, variables=frame.f_globals).reason
        return bool(self.doubt)

    def _timed(self, *args: object, **kwargs: object) -> object:
        self._calls += 1
        is_itself = self._calls > WARM and self._calls % 2
        start = time.perf_counter()
        result = (self._function if is_itself else self._parts)(*args, **kwargs)
        if self._calls > WARM:
            self._seconds[is_itself].append(time.perf_counter() - start)
        if self._calls == WARM + 2 * TIMED:
            parts, itself = map(median, self._seconds)
            self.ratio = parts / itself if self._is_on_cpu() else 0.0
        return result

    def _is_on_cpu(self) -> bool:
        entries = [graph.compiler.last for graph in self.graphs]
        traces = [entry.captured.trace for entry in entries if entry is not None]
        return all(device.type == "cpu" for trace in traces for device in trace.devices)

    def _graph(self, graph: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
        self.doubt = self.doubt or _doubt_of(graph)
        if self.doubt:
            raise Unsupported(self.doubt)
        # a refused graph runs in eager mode, where such a region treats its own write as an overwritten value
        if any(part is not graph and _writes(part) for part in graph.modules()):
            raise Unsupported("a write inside a region of torch.utils.checkpoint, or one like it")
        if _reads_under_other_mode(graph):
            raise Unsupported("an attribute of a tensor that is read where grad mode was changed")
        if _applies_function(graph):
            raise Unsupported("an autograd.Function")
        if not _RESHAPES.isdisjoint(node.target for node in graph.graph.nodes if _is_call(node)):
            raise Unsupported("a tensor that is given other sizes or strides in place")
        line = _line_of(graph)
        name = ", ".join(filter(None, (self.name, f"graph {len(self.graphs) + 1}", line)))
        compiler, run = graph_runner(graph, inputs, self._compile_graph, name)
        self.graphs.append(Graph(compiler, sum(map(_is_call, graph.graph.nodes)), line))
        return run


def _writes(part: torch.nn.Module) -> bool:
    names = [str(getattr(node.target, "__name__", node.target)) for node in _nodes(part) if _is_call(node)]
    return any(name.endswith("_") and not name.endswith("__") for name in names)


def _reads_under_other_mode(graph: fx.GraphModule) -> bool:
    """Check whether attributes are read and grad mode is changed: `x.mT`, made under `no_grad` and returned.

    Seen with PyTorch 2.13: TorchDynamo reads the attribute again behind the graph, where grad mode is on.
    """
    targets = {node.target for node in graph.graph.nodes if _is_call(node)}
    return getattr in targets and internals.set_grad_enabled in targets


def _applies_function(graph: fx.GraphModule) -> bool:
    """Check whether an autograd.Function is called.

    A later graph is one autograd node. If that node has no gradient for the Function's output, PyTorch runs the
    Function's backward on zeros; eager's graph does not reach the Function.
    """
    return any(getattr(node.target, "__name__", "") == "autograd_function_apply" for node in graph.graph.nodes)


def _doubt_of(graph: fx.GraphModule) -> str:
    """Return why the function of a graph is not split, by the traced code and by the graph; empty if it is."""
    codes = traced_code()
    reason = next(filter(None, map(of_code, codes)), "")
    targets = [node.target for part in graph.modules() for node in _nodes(part) if _is_call(node)]
    if any("flex_attention" in str(target) for target in targets):
        return "it calls flex_attention, which would run unfused"
    is_transformed = any("functorch" in str(getattr(one, "__module__", "")) for one in targets)
    if is_transformed and not _codes_of_functions().isdisjoint(codes):
        return "it calls an autograd.Function under torch.func, where TorchDynamo drops its backward, jvp and vmap"
    return reason


def _codes_of_functions() -> set[types.CodeType]:
    """Return the code of all methods of autograd.Functions."""
    kinds = [torch.autograd.Function]
    for kind in kinds:
        kinds += kind.__subclasses__()
    methods = [getattr(value, "__func__", value) for kind in kinds for value in vars(kind).values()]
    return {method.__code__ for method in methods if isinstance(method, types.FunctionType)}


def _line_of(graph: fx.GraphModule) -> str:
    """Return the user's line behind a graph, the first of several, as file:line."""
    for node in graph.graph.nodes:
        lines = re.findall(r'File "(.+)", line (\d+)', node.meta.get("stack_trace") or "")
        user = [f"{file}:{number}" for file, number in lines if not is_own_file(file)]
        if user and _is_call(node):
            return user[-1]
    return ""


def _with_own_code(function: Callable[..., object]) -> Callable[..., object]:
    """Return a copy of a function with its own code: TorchDynamo caches and counts by code.

    Closures of one factory share one code object, whose cache entries are searched linearly.
    """
    if isinstance(function, types.MethodType):
        return types.MethodType(_with_own_code(function.__func__), function.__self__)
    if not isinstance(function, types.FunctionType):
        return function
    parts = function.__globals__, function.__name__, function.__defaults__, function.__closure__
    twin = types.FunctionType(function.__code__.replace(), *parts)
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__qualname__, twin.__module__ = function.__qualname__, function.__module__
    return twin


def _nodes(part: object) -> Iterable[fx.Node]:
    return part.graph.nodes if isinstance(part, fx.GraphModule) else ()


def _is_call(node: fx.Node) -> bool:
    return node.op.startswith("call_")
