"""Splitting: TorchDynamo takes apart what capture refuses, and each graph that it finds is compiled by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import fx

from switchgear import torch_private as internals
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
    """What TorchDynamo makes of one function."""

    def __init__(
        self, function: Callable[..., object], compile_graph: CompileGraph, dynamic: bool | None
    ) -> None:
        self.graphs: list[Graph] = []
        self.breaks: Counter[str] = Counter()
        self._compile_graph = compile_graph
        self.run = internals.taken_apart(
            function, self._graph, lambda reason: self.breaks.update([reason]), dynamic
        )

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
