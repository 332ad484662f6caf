"""Graphs of operators, as calls of the functions that rules and implementations are for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from switchgear_core import torch_private as internals
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.symbol import BoundSymbol
from switchgear_core.record.values import metadata_proxy
from switchgear_core.registry.selection import Selection
from switchgear_graphs.recording import Input, recorded, selection_of

#: A function, and the number of positional arguments.
_Answer: TypeAlias = tuple[Any, int]
#: The largest number of such flags.
_FLAGS = 2
#: The namespaces of such functions, in the order of asking.
_SPACES = (torch.nn.functional, torch)


def with_functions(graph: fx.GraphModule) -> fx.GraphModule:
    """Replace operators of a graph by PyTorch's functions that make the very same call, in place.

    `torch.export` writes `torch.ops.aten.gelu.default`; most rules are for `torch.nn.functional.gelu`. A function takes
    the place of an operator only if it dispatches the same operators with the same arguments, as recorded on stand-ins.

    Args:
        graph: a graph whose nodes have metadata of tensors (`node.meta["val"]`), such as the module of an exported
            program.

    Returns:
        The same graph.
    """
    selection = selection_of()
    answers: dict[object, _Answer] = {}
    for node in graph.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, internals.OpOverload):
            values = [item.meta.get("val") for item in node.all_input_nodes]
            key = node.target, repr(_layouts(values)), repr((node.args, node.kwargs))
            if key not in answers:
                answers[key] = next(_functions(node, values, selection), (node.target, len(node.args)))
            node.target, count = answers[key]
            node.args = node.args[:count]
    graph.recompile()
    return graph


def _layouts(values: Sequence[Any]) -> list[object]:
    return [(tuple(v.shape), v.stride(), v.dtype, v.device) if isinstance(v, torch.Tensor) else v for v in values]


def _functions(node: fx.Node, values: Sequence[Any], selection: Selection) -> Iterator[_Answer]:
    """Yield the functions that make the same call as a node, with as many of its arguments."""
    is_known = values and all(isinstance(value, torch.Tensor) for value in values)
    if not is_known or any(isinstance(size, torch.SymInt) for value in values for size in value.shape):
        return
    name = node.target._schema.name.partition("::")[2]  # type: ignore[union-attr]
    count, reference = len(node.args), _leaves(node, node.target, len(node.args), values, selection)
    functions = [getattr(space, name, None) for space in _SPACES if not name.startswith("_")]
    for function in dict.fromkeys(filter(callable, functions)) if reference else ():
        # the last arguments of an operator may be flags that a function sets
        for fewer in range(count, max(0, count - _FLAGS) - 1, -1):
            if _leaves(node, function, fewer, values, selection) == reference:
                yield function, fewer


def _leaves(
    node: fx.Node, function: Any, count: int, values: Sequence[torch.Tensor], selection: Selection
) -> list[object]:
    """Return the operators that a function dispatches with the first arguments of a node; none if it fails."""
    names = {item: f"x{index}" for index, item in enumerate(node.all_input_nodes)}
    inputs = [Input(metadata_proxy(name, value, False)) for name, value in zip(names.values(), values, strict=True)]

    def run(tensors: dict[str, Any]) -> Sequence[Any]:
        args = fx.map_arg(node.args[:count], lambda item: tensors[names[item]])
        kwargs = fx.map_arg(node.kwargs, lambda item: tensors[names[item]])
        result = function(*args, **kwargs)
        return result if isinstance(result, (tuple, list)) else [result]

    try:
        trace = recorded("call", inputs, {}, run, selection)
    except Exception:  # the arguments are in another order, or of other types
        return []
    return [*map(_key, leaves_of(trace.bound_symbols)), trace.outputs]


def _key(item: BoundSymbol) -> object:
    return item.symbol.name, item.args, sorted(item.kwargs.items()), item.output, item.tags
