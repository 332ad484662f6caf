"""Graphs of TorchDynamo, compiled as functions of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint, noop_context_fn

from switchgear_runtime.splitting import CompileGraph, GraphCompiler


def graph_runner(
    graph: fx.GraphModule, inputs: Sequence[object], compile_graph: CompileGraph, name: str = ""
) -> tuple[GraphCompiler, Callable[..., object]]:
    """Return the compiler of a TorchDynamo graph, and a callable for TorchDynamo's arguments."""
    # a copy: TorchDynamo still uses the placeholders of its own graph
    copy = fx.Graph()
    copy.output(copy.graph_copy(graph.graph, {}))
    for node in copy.nodes:
        if node.target is torch.ops.higher_order.tag_activation_checkpoint:
            node.target = run_region
    graph = fx.GraphModule(graph, copy)
    places, dynamic = _without_sizes(graph, inputs)
    # its code is generated now: TorchDynamo's graph would do so in the first call, during the capture
    compiler = compile_graph(fx.GraphModule(graph, graph.graph), dynamic, name)
    if len(places) == len(inputs):
        return compiler, compiler
    return compiler, lambda *args: compiler(*[args[index] for index in places])


def run_region(graph: fx.GraphModule, *args: object, **options: object) -> object:
    """Run a region of `torch.utils.checkpoint` as eager does: TorchDynamo's operator draws new numbers when
    recomputing."""
    context_fn = graph.meta.get("_checkpoint_context_fn", noop_context_fn)
    options |= {"use_reentrant": False, "context_fn": context_fn}
    return checkpoint(graph, *args, **options)  # type: ignore[arg-type]


def _without_sizes(graph: fx.GraphModule, inputs: Sequence[object]) -> tuple[list[int], Mapping[str, frozenset[int]]]:
    """Replace size inputs of a graph by sizes of its tensors; return the other inputs, and the varying dimensions."""
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    dynamic, homes = {}, dict[str, tuple[fx.Node, int]]()
    for node, argument in zip(nodes, inputs, strict=True):
        # the inputs themselves may belong to the current call, whose sizes are numbers
        value = node.meta.get("example_value", argument)
        is_plain = isinstance(value, torch.Tensor) and not value.is_nested
        shape: Sequence[object] = value.shape if is_plain else ()
        dims = [dim for dim, size in enumerate(shape) if isinstance(size, torch.SymInt)]
        if dims:
            dynamic[str(node.target)] = frozenset(dims)
        for dim in dims:
            homes.setdefault(str(shape[dim]), (node, dim))
    remaining = []
    for index, (node, value) in enumerate(zip(nodes, inputs, strict=True)):
        if not isinstance(value, torch.SymInt) or str(value) not in homes:
            remaining.append(index)
            continue
        with graph.graph.inserting_after(nodes[-1]):
            node.replace_all_uses_with(graph.graph.call_method("size", homes[str(value)]))
    dropped = [node for index, node in enumerate(nodes) if index not in remaining]
    for node in dropped:
        graph.graph.erase_node(node)
    return remaining, dynamic
