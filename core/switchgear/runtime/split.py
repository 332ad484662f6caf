"""Splitting: TorchDynamo takes apart what capture refuses, and each graph that it finds is compiled by itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch
from torch import fx

from switchgear import torch_private as internals
from switchgear.capture.attempts import leaves_nothing
from switchgear.errors import Unsupported
from switchgear.runtime.entry import Entry
from switchgear.runtime.fallback import Fallbacks


class GraphCompiler(Protocol):
    """The compiler of one graph."""

    fallbacks: Fallbacks
    last: Entry | None

    def __call__(self, *args: object) -> object:
        """Run the graph."""


#: What compiles a graph for the dynamic dimensions of the tensors among its parameters.
CompileGraph = Callable[[fx.GraphModule, Mapping[str, frozenset[int]]], GraphCompiler]


#: Seen with PyTorch 2.13: TorchDynamo goes on with the dimensions that a tensor had before.
_RESHAPES = {"unsqueeze_", "squeeze_", "t_", "transpose_", "swapaxes_", "swapdims_", "resize_"}


#: So many calls run in parts before any is timed, and so many are timed of each way to run it.
WARM, TIMED = 32, 16


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A graph that TorchDynamo found, and how many calls there are in it."""

    compiler: GraphCompiler
    operators: int

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
        self, function: Callable[..., object], compile_graph: CompileGraph, dynamic: bool | None
    ) -> None:
        self.graphs: list[Graph] = []
        self.breaks: Counter[str] = Counter()
        self._compile_graph = compile_graph
        self._function = function
        self._parts = internals.taken_apart(
            function,
            self._graph,
            lambda reason: self.breaks.update([reason]),
            dynamic,
            leaves_nothing,
        )
        self._calls = 0
        self._seconds: tuple[list[float], list[float]] = [], []
        #: The time of the parts to that of the function itself, once it is known.
        self.ratio: float | None = None

    def run(self, *args: object, **kwargs: object) -> object:
        """Run the parts, or the function itself where that was faster, or while all modules have hooks.

        TorchDynamo does not notice such hooks that come or go after the first call.
        """
        if any(internals.global_module_hooks()):
            return self._function(*args, **kwargs)
        if torch.is_grad_enabled():
            return self._parts(*args, **kwargs)
        if self.ratio is None:
            return self._timed(*args, **kwargs)
        return (self._function if self.ratio > 1 else self._parts)(*args, **kwargs)

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
        # a graph that is refused runs in eager, where such a region takes what it wrote itself for overwritten
        if any(part is not graph and _writes(part) for part in graph.modules()):
            raise Unsupported("a write inside a region of torch.utils.checkpoint, or one like it")
        if _reads_under_other_mode(graph):
            raise Unsupported("an attribute of a tensor that is read where grad mode was changed")
        if _applies_function(graph):
            raise Unsupported("an autograd.Function")
        if not _RESHAPES.isdisjoint(node.target for node in graph.graph.nodes if _is_call(node)):
            raise Unsupported("a tensor that is given other sizes or strides in place")
        compiler, run = graph_runner(graph, inputs, self._compile_graph)
        self.graphs.append(Graph(compiler, sum(map(_is_call, graph.graph.nodes))))
        return run

    def __str__(self) -> str:
        compiled = [graph for graph in self.graphs if graph.is_compiled]
        done, all_ = (sum(graph.operators for graph in some) for some in (compiled, self.graphs))
        share = f" ({done / all_:.0%})" if all_ else ""
        lines = [
            f"TorchDynamo: {len(compiled)} of {len(self.graphs)} graphs compiled, with {done} of {all_} calls{share}"
        ]
        lines += [
            f"  in eager: a graph of {graph.operators} calls: {reason}"
            for graph in self.graphs
            for reason in graph.refusals
        ]
        if self.ratio is not None and self.ratio > 1:
            lines.append(
                f"  without gradients the parts took {self.ratio:.2f} of eager's time: calls run in eager"
            )
        lines += [f"  graph break: {count} x {reason}" for reason, count in self.breaks.items()]
        return "\n".join(lines)


def _writes(part: torch.nn.Module) -> bool:
    nodes = part.graph.nodes if isinstance(part, fx.GraphModule) else ()
    names = [getattr(node.target, "__name__", node.target) for node in nodes if _is_call(node)]
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


def _is_call(node: fx.Node) -> bool:
    return node.op.startswith("call_")


def graph_runner(
    graph: fx.GraphModule, inputs: Sequence[object], compile_graph: CompileGraph
) -> tuple[GraphCompiler, Callable[..., object]]:
    """The compiler of a graph of TorchDynamo's, and what takes the arguments that TorchDynamo gives."""
    kept, dynamic = _without_sizes(graph, inputs)
    # its code is written now: a graph of TorchDynamo's would do it in the first call, while that is captured
    compiler = compile_graph(fx.GraphModule(graph, graph.graph), dynamic)
    if len(kept) == len(inputs):
        return compiler, compiler
    return compiler, lambda *args: compiler(*[args[index] for index in kept])


def _without_sizes(
    graph: fx.GraphModule, inputs: Sequence[object]
) -> tuple[list[int], Mapping[str, frozenset[int]]]:
    """Let a graph ask its tensors for the sizes that it is given; the other inputs, and which dimensions vary."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    dynamic, homes = {}, dict[str, tuple[fx.Node, int]]()
    for node, value in zip(nodes, inputs, strict=True):
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
