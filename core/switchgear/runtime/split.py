"""Splitting: TorchDynamo takes apart what capture refuses, and each graph that it finds is compiled by itself."""

from __future__ import annotations

import operator
import re
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint, noop_context_fn

from switchgear import torch_private as internals
from switchgear.errors import Unsupported
from switchgear.record.attempts import leaves_nothing
from switchgear.record.user_code import is_own_file
from switchgear.runtime.doubts import Doubts, is_library, of_code
from switchgear.runtime.entry import Entry
from switchgear.runtime.fallback import Fallbacks


class GraphCompiler(Protocol):
    """The compiler of one graph."""

    fallbacks: Fallbacks
    last: Entry | None

    def __call__(self, *args: object) -> object:
        """Run the graph."""


#: What compiles a graph, by its name, for the dynamic dimensions of the tensors among its parameters.
CompileGraph = Callable[[fx.GraphModule, Mapping[str, frozenset[int]], str], GraphCompiler]


#: Seen with PyTorch 2.13: TorchDynamo goes on with the dimensions that a tensor had before.
_RESHAPES = {"unsqueeze_", "squeeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "resize_"}


#: Code is converted so often, for so many kinds of calls.
_CONVERSIONS = 16

#: So many calls run in parts before any is timed, and so many are timed of each way to run it.
WARM, TIMED = 32, 16


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A graph that TorchDynamo found, and how many calls there are in it."""

    compiler: GraphCompiler
    operators: int
    #: The first line of the user's that it comes from.
    line: str = ""

    @property
    def refusals(self) -> list[str]:
        """Why it runs in eager, if it does."""
        reasons = self.compiler.fallbacks.reasons.values()
        return [str(one).partition("\n")[0] for one in reasons if one.calls]

    @property
    def is_compiled(self) -> bool:
        """Whether executors run it in every call so far."""
        return self.compiler.last is not None and not self.refusals


class Split:
    """What TorchDynamo makes of one function.

    Calls without gradients on a CPU run the parts or the function itself, as soon as it is known which takes less time.
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
        #: Why calls run as they are from now on, if they do.
        self.doubt = self._doubts.reason
        self._conversions: Counter[types.CodeType] = Counter()
        self._own: tuple[object, object] | None = None
        self._parts: Callable[..., object]
        self._calls = 0
        self._seconds: tuple[list[float], list[float]] = [], []
        #: The time of the parts to that of the function itself, once it is known.
        self.ratio: float | None = None

    def trust(self) -> str:
        """Return why a call is not run in parts, empty if it is; before it runs."""
        self.doubt = self.doubt or self._doubts.changed()
        return self.doubt

    def run(self, *args: object, **kwargs: object) -> object:
        """Run the parts, or the function itself where that was faster, or while all modules have hooks.

        TorchDynamo does not notice such hooks that come or go after the first call.
        """
        if self.doubt or any(internals.global_module_hooks()):
            return self._function(*args, **kwargs)
        own = getattr(self._function, "__func__", self._function)
        state = getattr(own, "__code__", None), getattr(own, "__defaults__", None)
        if self._own is None or any(map(operator.is_not, state, self._own)):
            parts = internals.taken_apart(
                _with_own_code(self._function),
                self._graph,
                self._note,
                self._dynamic,
                leaves_nothing,
                self._distrusts,
            )
            self._parts = parts
            self._own = state  # the last: an interrupt may come before
        if torch.is_grad_enabled():
            return self._parts(*args, **kwargs)
        if self.ratio is None:
            return self._timed(*args, **kwargs)
        return (self._function if self.ratio > 1 else self._parts)(*args, **kwargs)

    def _note(self, reason: str) -> None:
        self.breaks[reason] += 1

    def _distrusts(self, frame: types.FrameType | None) -> bool:
        """Whether the frame that is about to be converted, or was just now (None), is to run as it is."""
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
        # a graph that is refused runs in eager, where such a region takes what it wrote itself for overwritten
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
    names = [
        str(getattr(node.target, "__name__", node.target))
        for node in _nodes(part)
        if _is_call(node)
    ]
    return any(name.endswith("_") and not name.endswith("__") for name in names)


def _reads_under_other_mode(graph: fx.GraphModule) -> bool:
    """Whether attributes are read and grad mode is changed: `x.mT`, made under `no_grad` and returned.

    Seen with PyTorch 2.13: TorchDynamo reads it once more behind the graph, where grad mode is on.
    """
    called = {node.target for node in graph.graph.nodes if _is_call(node)}
    return getattr in called and internals.set_grad_enabled in called


def _applies_function(graph: fx.GraphModule) -> bool:
    """Whether an autograd.Function is called.

    A graph behind it is one node of autograd's: where that has no gradient for what the Function made, PyTorch runs the
    Function's backward on zeros, which eager's graph does not come to.
    """
    return any(
        getattr(node.target, "__name__", "") == "autograd_function_apply"
        for node in graph.graph.nodes
    )


def _doubt_of(graph: fx.GraphModule) -> str:
    """Return why the function of a graph is not split, by the code that was traced and by the graph; empty if it is."""
    codes = internals.traced_code()
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
    """Return the first line of the user's that a graph comes from, as file:line."""
    for node in graph.graph.nodes:
        lines = re.findall(r'File "(.+)", line (\d+)', node.meta.get("stack_trace") or "")
        user = [f"{file}:{number}" for file, number in lines if not is_own_file(file)]
        if user and _is_call(node):
            return user[-1]
    return ""


def _with_own_code(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function with code of its own: TorchDynamo keeps what it makes, and counts it, by code.

    Closures of one factory have one code, and that is looked through from end to end.
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


def graph_runner(
    graph: fx.GraphModule, inputs: Sequence[object], compile_graph: CompileGraph, name: str = ""
) -> tuple[GraphCompiler, Callable[..., object]]:
    """The compiler of a graph of TorchDynamo's, and what takes the arguments that TorchDynamo gives."""
    # a copy: TorchDynamo still goes by the placeholders of its own
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph.graph, {}))
    for node in copy.nodes:
        if node.target is torch.ops.higher_order.tag_activation_checkpoint:
            node.target = run_region
    graph = fx.GraphModule(graph, copy)
    kept, dynamic = _without_sizes(graph, inputs)
    # its code is written now: a graph of TorchDynamo's would do it in the first call, while that is captured
    compiler = compile_graph(fx.GraphModule(graph, graph.graph), dynamic, name)
    if len(kept) == len(inputs):
        return compiler, compiler
    return compiler, lambda *args: compiler(*[args[index] for index in kept])


def run_region(graph: fx.GraphModule, *args: object, **options: object) -> object:
    """Run a region of `torch.utils.checkpoint` as eager does: TorchDynamo's operator draws other numbers again."""
    context_fn = graph.meta.get("_checkpoint_context_fn", noop_context_fn)
    options |= {"use_reentrant": False, "context_fn": context_fn}
    return checkpoint(graph, *args, **options)  # type: ignore[arg-type]


def _without_sizes(
    graph: fx.GraphModule, inputs: Sequence[object]
) -> tuple[list[int], Mapping[str, frozenset[int]]]:
    """Let a graph ask its tensors for the sizes that it is given; the other inputs, and which dimensions vary."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    dynamic, homes = {}, dict[str, tuple[fx.Node, int]]()
    for node, given in zip(nodes, inputs, strict=True):
        # the inputs themselves may be those of the call at hand, whose sizes are numbers
        value = node.meta.get("example_value", given)
        shape: Sequence[object] = value.shape if isinstance(value, torch.Tensor) else ()
        dims = [dim for dim, size in enumerate(shape) if isinstance(size, torch.SymInt)]
        if dims:
            dynamic[str(node.target)] = frozenset(dims)
        for dim in dims:
            homes.setdefault(str(shape[dim]), (node, dim))
    kept = []
    for index, (node, value) in enumerate(zip(nodes, inputs, strict=True)):
        if not isinstance(value, torch.SymInt) or str(value) not in homes:
            kept.append(index)
            continue
        with graph.graph.inserting_after(nodes[-1]):
            node.replace_all_uses_with(graph.graph.call_method("size", homes[str(value)]))
    dropped = [node for index, node in enumerate(nodes) if index not in kept]
    for node in dropped:
        graph.graph.erase_node(node)
    return kept, dynamic
