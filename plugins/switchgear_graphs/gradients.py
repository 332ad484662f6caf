"""`differentiate`: the grad pass alone, for traces, graphs, exported programs and functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from switchgear_core import torch_private as internals
from switchgear_core.errors import InvalidInput, Unsupported, did_you_mean
from switchgear_core.grad.differentiate import Joint
from switchgear_core.grad.partition import partition
from switchgear_core.ir.proxy import TensorProxy, changed_proxy
from switchgear_core.ir.symbol import AFTER, BOX, DEL
from switchgear_core.ir.trace import Names, Trace, names_of
from switchgear_core.passes.pipeline import differentiated, prepare
from switchgear_core.passes.programs import expected_grad
from switchgear_core.record.attempts import compiles
from switchgear_core.record.signature import flatten_arguments
from switchgear_core.registry.order import Executors
from switchgear_core.registry.selection import Selection
from switchgear_frontend.session import ContainerMatters, capture
from switchgear_graphs.functions import with_functions
from switchgear_graphs.graph_modules import from_fx
from switchgear_graphs.joint_graphs import Graphs, names_of_arguments
from switchgear_graphs.recording import Input, recorded, replay, selection_of, with_names
from switchgear_graphs.signature import Noticing, Signature, kinds_of, paths, random_values, source_name
from switchgear_runtime.compiler import Compiler
from switchgear_tools.before_call import compiler_for

#: Names of inputs or outputs, or their positions.
Edges: TypeAlias = Sequence[str | int] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """A trace, the qualified names of its inputs and outputs, and the kind of each input in a signature."""

    trace: Trace
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kinds: tuple[str, ...]


def differentiate(
    program: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    executors: Executors = ("torch",),
    grad_rules: Any = None,
    outputs: Edges = None,
    inputs: Edges = None,
    order: int = 1,
) -> Graphs:
    """Differentiate a program, and return its traces; nothing runs.

    Args:
        program: a trace; a `torch.fx.GraphModule`; a `torch.export.ExportedProgram`; or a function or module.
        args: arguments of a call, of which the metadata is read. A trace needs none, and a graph none if its
            placeholders have metadata.
        kwargs: keyword arguments of the call, for functions.
        executors: names or objects of those whose grad rules are asked, the first asked first.
        grad_rules: as in `sg.jit`.
        outputs: the outputs with tangents, by name or position; by default all that depend on `inputs`.
        inputs: the inputs with gradients, by name or position; by default those that require grad, or else all with
            floating-point numbers.
        order: how often to differentiate. From the second time on, gradients are outputs, too: the gradient of `x` is
            called `x.grad`.

    Returns:
        The traces of the last order, and their signature.

    Raises:
        InvalidInput: an argument is invalid, or no output depends on the inputs.
        NotDifferentiable: no rule, decomposition or formula differentiates an operator.
        RuleError: a rule raised, or returned something invalid.
        Unsupported: a part of the program cannot be recorded.
    """
    if order < 1:
        raise InvalidInput(f"order={order!r}; it is 1 or more")
    selection = selection_of(executors, grad_rules)
    start = _program(program, tuple(args), dict(kwargs or {}), selection)
    places = _places(inputs, start.inputs, start.trace.inputs, "inputs")
    if places is None:
        places = [index for index, proxy in enumerate(start.trace.inputs) if proxy.requires_grad]
    if not places:
        places = [index for index, proxy in enumerate(start.trace.inputs) if proxy.is_differentiable]
    current = replace(start, trace=again(start.trace, selection, places))
    ends = _places(outputs, start.outputs, start.trace.outputs, "outputs")
    for number in range(1, order + 1):
        joint = _differentiated(current, selection, ends, number < order)
        if number < order:
            current, ends = _with_gradients(current, joint, selection, places, ends)
    parts = partition(joint, frozenset(), selection.savings, bool(selection.fusion))
    return Graphs(joint.trace, parts.forward, parts.backward, _signature(current, joint))


def _program(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any], selection: Selection) -> _Program:
    if isinstance(program, Trace):
        if args or kwargs:
            raise InvalidInput("a trace takes no arguments here: it has the metadata of its inputs")
        return _of_trace(program, {})
    if isinstance(program, torch.export.ExportedProgram):
        examples = (args, kwargs) if args or kwargs else program.example_inputs
        tensors = [tensor for _, tensor in paths(examples)]
        return _of_trace(*from_fx(with_functions(program.module()), tensors, selection))
    if isinstance(program, fx.GraphModule):
        return _of_trace(*from_fx(program, args or None, selection))
    return _of_function(compiler_for(program), args, kwargs, selection)


@compiles
def _of_function(compiler: Compiler, args: tuple[Any, ...], kwargs: dict[str, Any], selection: Selection) -> _Program:
    """Capture a function with each tensor that it returns as an output, views too."""
    call, noticing = flatten_arguments(args, kwargs), Noticing(selection.handlers)
    need = [index for index, leaf in enumerate(call.leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    try:
        captured = capture(
            compiler.function, call.leaves, call.spec, noticing, compiler.module, differentiable=frozenset(need)
        )
    except ContainerMatters:
        raise Unsupported("the function changes or returns a container among its arguments; return a new one") from None
    if captured.outputs.mutations or captured.outputs.metadata:
        raise Unsupported("the function writes to its inputs; sg.joint has the new values among its outputs")
    arguments = names_of_arguments(compiler, args, kwargs)
    names = [source_name(source, arguments) for source in captured.sources]
    results = [proxy for item in captured.trace.bound_symbols for proxy in item.outputs]
    values = {proxy.name: proxy for proxy in (*captured.trace.inputs, *results)}
    trace = replace(captured.trace, outputs=tuple([values[name] for _, name in noticing.results]))
    places = tuple([place for place, _ in noticing.results])
    return _Program(trace, tuple(names), places, kinds_of(captured.sources))


def _of_trace(trace: Trace, parameters: Mapping[str, str]) -> _Program:
    names = [parameters.get(proxy.name, proxy.name) for proxy in trace.inputs]
    kinds = tuple(["parameters" if proxy.name in parameters else "inputs" for proxy in trace.inputs])
    outputs = tuple(["None" if proxy is None else proxy.name for proxy in trace.outputs])
    return _Program(trace, tuple(names), outputs, kinds)


def _places(edges: Edges, names: Sequence[str], proxies: Sequence[TensorProxy | None], option: str) -> list[int] | None:
    """Return the positions that a user chose, or None."""
    if edges is None:
        return None
    places = []
    for item in (edges,) if isinstance(edges, str) else edges:
        own = [proxy.name if proxy is not None else "" for proxy in proxies]
        matches = [place for place in range(len(names)) if item in (place, names[place], own[place])]
        place = matches[0] if matches else None
        if place is None:
            raise InvalidInput(
                f"{option} names {item!r}, and the program has {', '.join(names)}{did_you_mean(item, names)}"
            )
        proxy = proxies[place]
        if proxy is None or not proxy.is_differentiable:
            raise InvalidInput(f"{option} names {item!r}, which has no floating-point numbers: it has no gradient")
        places.append(place)
    return places


def again(trace: Trace, selection: Selection, places: Sequence[int]) -> Trace:
    """Record a trace again, with gradients for the inputs at some positions, under the same names."""
    special = [item for item in trace.bound_symbols if item.symbol in (BOX, AFTER)]
    if special or trace.writes or trace.numbers:
        raise Unsupported(
            f"trace {trace.name!r} has symbolic sizes, regions or writes in place; take an earlier stage of it"
        )
    body = [item for item in trace.bound_symbols if item.symbol is not DEL]
    inputs = [Input(changed_proxy(p, requires_grad=i in places)) for i, p in enumerate(trace.inputs)]
    own: dict[str, str] = {}

    def run(values: dict[str, Any]) -> Sequence[Any]:
        for item in body:
            replay(item, values)
        return [None if proxy is None else values[proxy.name] for proxy in trace.outputs]

    result = recorded(trace.name, inputs, trace.tensors, run, selection, [*names_of(trace)])
    for old, new in zip(trace.outputs, result.outputs, strict=True):
        if old is not None and new is not None and new.name not in names_of(trace):
            own.setdefault(new.name, old.name)
    return with_names(result, own)


@compiles
def _differentiated(program: _Program, selection: Selection, ends: Sequence[int] | None, higher_order: bool) -> Joint:
    with torch.no_grad(), internals.autocast_off():
        stages, _ = prepare(program.trace, selection)
        outputs = stages[-1].outputs
        places = range(len(outputs)) if ends is None else ends
        names = Names(names_of(stages[-1]))

        def tangent(place: int, proxy: TensorProxy | None) -> TensorProxy | None:
            grad = None if proxy is None or place not in places else expected_grad(proxy)
            return grad and changed_proxy(grad, name=names.claim(grad.name))

        grads = tuple([tangent(place, proxy) for place, proxy in enumerate(outputs)])
        if not any(grads):
            raise InvalidInput("no output depends on the inputs in a way that has a gradient")
        _, joint, _ = differentiated(stages, selection, grads, higher_order)
    return joint


def _with_gradients(
    program: _Program, joint: Joint, selection: Selection, places: Sequence[int], ends: list[int] | None
) -> tuple[_Program, list[int]]:
    """Return the joint program as one to differentiate, and the positions of the outputs with tangents."""
    count, trace = joint.count, joint.trace
    final = [(name, proxy) for name, proxy in zip(program.inputs, trace.outputs[count:], strict=False) if proxy]
    flat = replace(trace, outputs=(*trace.outputs[:count], *[proxy for _, proxy in final]))
    tangents = [proxy.name for proxy in trace.inputs[len(program.inputs) :]]
    outputs = (*program.outputs, *[f"{name}.grad" for name, _ in final])
    kinds = (*program.kinds, *["inputs"] * len(tangents))
    starts = range(count) if ends is None else ends
    result = _Program(again(flat, selection, places), (*program.inputs, *tangents), outputs, kinds)
    return result, [*starts, *range(count, len(outputs))]


def _signature(program: _Program, joint: Joint) -> Signature:
    trace, count = joint.trace, joint.count
    kinds: dict[str, Any] = {"parameters": {}, "buffers": {}, "inputs": {}, "constants": {}, "tangents": {}}
    for name, kind, proxy in zip(program.inputs, program.kinds, trace.inputs, strict=False):
        kinds[kind][name] = proxy.name
    pairs = zip(program.outputs, joint.grad_outputs, strict=True)
    kinds["tangents"] |= {name: grad.name for name, grad in pairs if grad is not None}
    outputs = {n: p.name for n, p in zip(program.outputs, trace.outputs[:count], strict=True) if p is not None}
    final = zip(program.inputs, trace.outputs[count:], strict=False)
    gradients = {name: proxy.name for name, proxy in final if proxy is not None}
    return Signature(**kinds, outputs=outputs, gradients=gradients, random=random_values(trace))
