"""`override`: a jitted function whose program is an edited one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from switchgear_core.errors import InvalidInput, Unsupported
from switchgear_core.ir.proxy import TensorProxy, changed_proxy
from switchgear_core.ir.symbol import BoundSymbol, Symbol, changed, map_proxies, renamed
from switchgear_core.ir.trace import Trace
from switchgear_core.ir.verify import verify
from switchgear_core.registry.hookspecs import PassContext, PassPlacement, Stage
from switchgear_graphs.graph_modules import from_fx
from switchgear_graphs.joint_graphs import is_jitted
from switchgear_runtime.entry import Entry
from switchgear_runtime.last_call import compiler_of

_FULL = Symbol("aten.full.default", torch.ops.aten.full.default)
#: The stage at which the program of each name stands.
_STAGES: dict[str, Stage] = {"computation": "before_grad", "joint": "after_grad"}


def override(function: Any, program: Trace | fx.GraphModule) -> Any:
    """Return a jitted function that runs an edited program in place of the captured one.

    The calls that the program is for have the same inputs, by name and layout. Other calls run the original function,
    with a `FallbackWarning`. A program called `computation` is differentiated anew, by the options of the function; one
    called `joint` has its gradients.

    Args:
        function: the result of `sg.jit`; it stays as it is.
        program: a trace called `computation` or `joint`, such as `sg.last_traces(f)[0]`, `sg.joint(f, x).joint`, or an
            edited one from `sg.load_trace`; or a graph made of it.

    Returns:
        A new jitted function, or a new jitted module, with the options of `function`.

    Raises:
        TypeError: `function` is not the result of `sg.jit`.
        InvalidInput: the program does not fit the last call of the function, or is no such trace.
        InvalidTrace: the program is faulty.
    """
    compiler = compiler_of(function)
    edited = program if isinstance(program, Trace) else _of_graph(program)
    stage = _STAGES.get(edited.name)
    if stage is None or edited.numbers or any(item.implementation for item in edited.bound_symbols):
        raise InvalidInput(
            f"trace {edited.name!r} is no program to put in place: take the captured one, or the joint one, before "
            "executors claim lines and with fixed sizes"
        )
    verify(edited)
    original = _stage_of_last_call(compiler.last, edited.name)
    fault = "" if original is None else difference(original, edited)
    if fault:
        raise InvalidInput(f"the program does not fit {compiler.name}: {fault}; keep its inputs and outputs")

    def put(trace: Trace, context: PassContext) -> Trace:
        fitting = edited if context.count is None else _for_tangents(edited, trace, context.count)
        fault = difference(trace, fitting)
        if fault:
            raise Unsupported(
                f"the program that override put in place does not fit the call: {fault}; override the program of this "
                "call, too",
                splits=False,
            )
        return _with_facts(fitting, trace)

    placement = PassPlacement("override", stage, put)
    passes = (*compiler.options["passes"], placement)
    subject = compiler.module if not _is_function(function) else compiler.function
    return function._switchgear_rejit(subject, passes=passes)


def _is_function(function: Any) -> bool:
    return is_jitted(function) and hasattr(type(function), "__get__")


def _of_graph(graph: object) -> Trace:
    if not isinstance(graph, fx.GraphModule):
        raise InvalidInput(f"a program is a trace or a torch.fx.GraphModule, not a {type(graph).__name__}")
    trace, parameters = from_fx(graph)
    if parameters:
        raise InvalidInput(f"the graph has the parameter {next(iter(parameters.values()))}; make it a placeholder")
    return trace


def _stage_of_last_call(entry: Entry | None, name: str) -> Trace | None:
    if entry is None:
        return None
    if name == "joint":
        return None if entry.bridge is None else entry.bridge.training.joint.trace
    return entry.captured.trace


def difference(original: Trace, edited: Trace) -> str:
    """Return how the edges of two programs differ; empty if they are alike."""
    if original.name != edited.name:
        return f"it is called {edited.name}, and the other {original.name}"
    if len(original.inputs) != len(edited.inputs):
        return f"it has {len(edited.inputs)} inputs, and the other {len(original.inputs)}"
    pairs: Sequence[tuple[TensorProxy, TensorProxy]] = [*zip(original.inputs, edited.inputs, strict=True)]
    for one, other in pairs:
        if one != other:
            return f"the input {other.name} is {_text(other)}, and the other program's {one.name} is {_text(one)}"
    if len(original.outputs) != len(edited.outputs):
        return f"it returns {len(edited.outputs)} values, and the other {len(original.outputs)}"
    matters = original.name == "computation"  # gradients in a joint trace are decided
    for place, (old, new) in enumerate(zip(original.outputs, edited.outputs, strict=True)):
        if (old is None) is not (new is None) or (old and new and _edge(old, matters) != _edge(new, matters)):
            return f"output {place} is {_text(new)}, and the other program's is {_text(old)}"
    return ""


def _for_tangents(edited: Trace, joint: Trace, count: int) -> Trace:
    """Return a joint program for fewer tangents, zeros in place of the others, and for the values that are saved."""
    names = {proxy.name for proxy in joint.inputs}
    zeros = tuple([_zeros(proxy) for proxy in edited.inputs if proxy.name not in names])
    own = {proxy.name: proxy for item in edited.bound_symbols for proxy in item.outputs}
    ends = joint.outputs[:count]
    final = edited.outputs[len(edited.outputs) - (len(joint.outputs) - count) :]
    if not zeros or any(proxy is not None and proxy.name not in own for proxy in ends):
        return edited
    outputs = tuple([proxy and own[proxy.name] for proxy in ends])
    inputs = tuple([proxy for proxy in edited.inputs if proxy.name in names])
    present = [place for place, proxy in enumerate(joint.outputs[count:]) if proxy is not None]
    gradients = tuple([proxy if place in present else None for place, proxy in enumerate(final)])
    return replace(edited, inputs=inputs, outputs=(*outputs, *gradients), bound_symbols=(*zeros, *edited.bound_symbols))


def _zeros(proxy: TensorProxy) -> BoundSymbol:
    options = {"dtype": proxy.dtype, "device": proxy.device}
    return BoundSymbol(_FULL, ([*proxy.shape], 0), options, proxy.fresh(proxy.name))


def _edge(proxy: TensorProxy, requires_grad_matters: bool) -> object:
    return proxy.shape, proxy.stride, proxy.dtype, proxy.device, requires_grad_matters and proxy.requires_grad


def _text(proxy: TensorProxy | None) -> str:
    if proxy is None:
        return "None"
    grad = ", requires grad" if proxy.requires_grad else ""
    return f"{proxy.type_string} with strides {[*proxy.stride]}{grad}"


def _with_facts(edited: Trace, original: Trace) -> Trace:
    """Return the edited program, with links, tags and modes of the lines that the original has, too."""
    lines = {proxy.name: item for item in original.bound_symbols for proxy in item.outputs}
    needs_grad = {proxy.name: proxy.requires_grad for item in lines.values() for proxy in item.outputs}
    values: dict[str, TensorProxy] = {}
    body: list[BoundSymbol] = []
    for item in edited.bound_symbols:
        inputs = [values.get(proxy.name, proxy) for proxy in item.inputs]
        default = any(proxy.requires_grad for proxy in inputs)
        for proxy in item.outputs:
            flag = proxy.requires_grad and needs_grad.get(proxy.name, default)
            values[proxy.name] = changed_proxy(proxy, requires_grad=flag)
        current = renamed(item, values)
        own = next((lines[proxy.name] for proxy in item.outputs if proxy.name in lines), None)
        if own is not None:
            facts: dict[str, Any] = {"links": own.links, "tags": item.tags | own.tags, "grad_enabled": own.grad_enabled}
            current = changed(current, **facts)
        body.append(current)
    outputs = map_proxies(lambda proxy: values.get(proxy.name, proxy), edited.outputs)
    return replace(edited, bound_symbols=tuple(body), outputs=outputs)
