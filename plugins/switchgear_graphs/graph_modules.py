"""Traces as graphs of `torch.fx`, and graphs as traces."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from switchgear_core import torch_private as internals
from switchgear_core.errors import InvalidInput, SwitchgearError, Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import AFTER, BACKWARD, BOX, DEL, BoundSymbol, map_proxies
from switchgear_core.ir.trace import Names, Trace
from switchgear_core.ir.writes import SET_VALUE
from switchgear_core.nesting import PLAIN
from switchgear_core.record.values import metadata_proxy
from switchgear_core.registry.selection import Selection
from switchgear_graphs.recording import Input, recorded, selection_of

#: Types of values that a node may have among its arguments.
_VALUES: tuple[Any, ...] = (
    *(*PLAIN, int, float, complex, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, internals.OpOverload),
)


def set_value(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return the value of `new` with the history of `old`."""
    result = old.clone()
    result.data.copy_(new)
    return result


def to_fx(trace: Trace) -> fx.GraphModule:
    """Make a graph of a trace; its placeholders and nodes have the names of the trace's values.

    Args:
        trace: a trace without claimed lines and symbolic sizes. Constants become buffers.

    Returns:
        The graph, which returns the flat outputs; its class has the name of the trace.

    Raises:
        Unsupported: a line cannot be a node.
    """
    if trace.numbers:
        raise Unsupported("a trace with symbolic sizes is not made a graph; jit with dynamic=False")
    graph, root, nodes = fx.Graph(), torch.nn.Module(), dict[str, fx.Node]()
    mode = internals.new_fake_mode(None)
    for proxy in trace.inputs:
        nodes[proxy.name] = graph.placeholder(proxy.name)
        nodes[proxy.name].meta["val"] = proxy.fake(mode).requires_grad_(proxy.requires_grad)
    for name, tensor in trace.tensors.items():
        root.register_buffer(name, tensor)
        nodes[name] = graph.get_attr(name)
    is_on = True
    for item in trace.bound_symbols:
        mode_of_line = item.grad_enabled or BACKWARD in item.tags
        if mode_of_line is not is_on:
            graph.call_function(internals.set_grad_enabled, (mode_of_line,))
            is_on = mode_of_line
        _add(graph, item, nodes, mode)
    if not is_on:
        graph.call_function(internals.set_grad_enabled, (True,))
    graph.output(map_proxies(lambda proxy: nodes[proxy.name], trace.outputs))
    return fx.GraphModule(root, graph, trace.name)


def _add(graph: fx.Graph, item: BoundSymbol, nodes: dict[str, fx.Node], mode: internals.FakeMode) -> None:
    args, kwargs = map_proxies(lambda proxy: nodes[proxy.name], (item.args, dict(item.kwargs)))
    _check_arguments(item, (args, kwargs))
    target = _target(item)
    name = item.outputs[0].name if isinstance(item.output, TensorProxy) else None
    if isinstance(target, str):
        node = graph.create_node("call_method", target, args, kwargs, name)
    else:
        node = graph.create_node("call_function", target, args, kwargs, name)
    _name_results(graph, item.output, node, nodes, mode)


def _name_results(
    graph: fx.Graph, output: Any, node: fx.Node, nodes: dict[str, fx.Node], mode: internals.FakeMode
) -> None:
    if isinstance(output, TensorProxy):
        nodes[output.name] = node
        node.meta["val"] = output.fake(mode)
    elif isinstance(output, tuple):
        for index, part in enumerate(output):
            if part is not None:
                name = part.name if isinstance(part, TensorProxy) else None
                inner = graph.create_node("call_function", operator.getitem, (node, index), {}, name)
                _name_results(graph, part, inner, nodes, mode)


def _target(item: BoundSymbol) -> Callable[..., Any] | str:
    fn: Any = item.symbol.fn
    if item.implementation is not None or item.symbol in (DEL, BOX, AFTER):
        raise Unsupported(f"the line {item!r} is claimed by an executor; make a graph of a stage before that")
    if item.symbol == SET_VALUE:
        return set_value
    if fn is torch.Tensor.__getitem__:
        return operator.getitem
    name = item.symbol.name.removeprefix("torch.Tensor.")  # the function of `__pow__` is called `pow`
    return name if getattr(torch.Tensor, name, None) is fn else fn


def _check_arguments(item: BoundSymbol, value: Any) -> None:
    if isinstance(value, (tuple, list)):
        for part in value:
            _check_arguments(item, part)
    elif isinstance(value, dict):
        for part in value.values():
            _check_arguments(item, part)
    elif isinstance(value, slice):
        _check_arguments(item, (value.start, value.stop, value.step))
    elif not isinstance(value, (fx.Node, *_VALUES)) and value is not Ellipsis:
        raise Unsupported(
            f"the line {item!r} has an argument of type {type(value).__name__}, which a graph cannot hold; compute "
            "without it"
        )


class _OnStandIns(fx.Interpreter):
    """An interpreter that names the node of an error."""

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except SwitchgearError as error:
            raise Unsupported(f"node {n.name} ({n.target}): {error}") from error
        except Exception as error:
            raise Unsupported(
                f"node {n.name} ({n.target}) cannot be recorded: {type(error).__name__}: {error}; register its "
                "function as an operator with torch.library, with a fake implementation"
            ) from error


def from_fx(
    graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor] | None = None, selection: Selection | None = None
) -> tuple[Trace, Mapping[str, str]]:
    """Record a graph as a trace.

    Args:
        graph: the graph. Its functions in Python are recorded as the operators that they call.
        example_inputs: tensors for its placeholders, of which the metadata is read; by default the values of
            `node.meta["val"]`, or of `node.meta["example_value"]`.
        selection: the features of capture that take part.

    Returns:
        The trace, and the qualified names of the graph's parameters by inputs of the trace. The inputs are the
        placeholders in order, then the parameters. Other tensors of the graph are constants.

    Raises:
        InvalidInput: there is no metadata for a placeholder.
        Unsupported: a node cannot be recorded, for it calls a function unknown to PyTorch, or writes to an input.
    """
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if example_inputs is None:
        examples = [node.meta.get("val", node.meta.get("example_value")) for node in placeholders]
    elif len(example_inputs) != len(placeholders):
        raise InvalidInput(f"{len(example_inputs)} tensors for the {len(placeholders)} placeholders of the graph")
    else:
        examples = [*example_inputs]
    names = Names()
    inputs = [
        Input(_metadata(names.claim(node.name), node, value))
        for node, value in zip(placeholders, examples, strict=True)
    ]
    parameters: dict[str, str] = {}
    for path, parameter in graph.named_parameters():
        name = names.claim(f"p_{path}")
        parameters[name] = path
        inputs.append(Input(metadata_proxy(name, parameter, parameter.requires_grad), parameter))
    order = [item.proxy.name for item in inputs[: len(placeholders)]]

    def run(values: dict[str, Any]) -> Sequence[Any]:
        interpreter = _OnStandIns(graph)
        interpreter.extra_traceback = False  # the error names its node
        return _flat(interpreter.run(*[values[name] for name in order], enable_io_processing=False))

    kind = type(graph).__name__
    name = kind if kind in ("computation", "joint", "forward", "backward") else "computation"
    return recorded(name, inputs, {}, run, selection or selection_of()), parameters


def _metadata(name: str, node: fx.Node, value: object) -> TensorProxy:
    if not isinstance(value, torch.Tensor):
        raise InvalidInput(
            f"placeholder {node.name} has no metadata of a tensor (node.meta['val'] is {value!r}); pass tensors for "
            "the placeholders"
        )
    if any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride())):
        raise InvalidInput(f"placeholder {node.name} has symbolic sizes; pass tensors for the placeholders")
    return metadata_proxy(name, value, value.requires_grad)


def _flat(result: object) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [leaf for item in result for leaf in _flat(item)]
    if isinstance(result, dict):
        return [leaf for item in result.values() for leaf in _flat(item)]
    return [result]
