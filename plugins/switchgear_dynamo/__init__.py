"""Splitting by TorchDynamo: a part, and the backend of `torch.compile(backend="switchgear")`.

A function that capture refuses is split, its graphs are compiled, and the rest runs in eager mode.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import switchgear as sg
from switchgear_core.registry.hookspecs import hookimpl
from switchgear_dynamo.graphs import graph_runner
from switchgear_dynamo.split import Split
from switchgear_dynamo.torch_private import can_take_apart
from switchgear_runtime.compiler import Compiler
from switchgear_runtime.last_call import compiler_of
from switchgear_runtime.splitting import CompileGraph


@hookimpl
def switchgear_split(
    function: Callable[..., object],
    compile_graph: CompileGraph,
    dynamic: bool | None,
    call: object,
) -> Split | None:
    """Split a function in Python."""
    is_python = isinstance(function, (types.FunctionType, types.MethodType))
    if not is_python or not can_take_apart():
        return None
    return Split(function, compile_graph, dynamic, call)


def dynamo_backend(
    graph: torch.fx.GraphModule, inputs: Sequence[object], options: dict[str, object] | None = None
) -> Callable[..., object]:
    """Compile a graph of `torch.compile(backend="switchgear")`.

    Args:
        graph: the graph that TorchDynamo captured.
        inputs: its example inputs.
        options: options of `sg.jit`.

    Returns:
        A function of the graph's inputs.
    """

    def compile_graph(graph: torch.fx.GraphModule, dynamic: Mapping[str, frozenset[int]], name: str) -> Compiler:
        arguments: dict[str, Any] = {"fallback": "eager", "dynamic": dynamic, **(options or {})}
        return compiler_of(sg.jit(graph, **arguments))

    return graph_runner(graph, inputs, compile_graph)[1]
