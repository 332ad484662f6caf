"""`joint`: the joint, forward and backward traces of a call, with their signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from switchgear_core.errors import InvalidInput
from switchgear_core.ir.trace import Trace
from switchgear_core.record.signature import flatten_arguments
from switchgear_core.showing import Shown, counted
from switchgear_graphs.functions import with_functions
from switchgear_graphs.graph_modules import to_fx
from switchgear_graphs.signature import Noticing, Signature, argument_names, signature_of
from switchgear_runtime.compiler import Compiler
from switchgear_runtime.entry import Entry
from switchgear_runtime.fallback import Fallback
from switchgear_runtime.jitted import JitFunction, JitModule
from switchgear_tools.before_call import compiler_for, undecided

#: The places in a return value, with the names of their values.
Results: TypeAlias = list[tuple[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class Graphs(Shown):
    """The traces of a call and their signature.

    Attributes:
        joint: forward and backward in one trace. Without gradients it is the forward.
        forward: the outputs, then the saved tensors.
        backward: from saved tensors and tangents to gradients; None without gradients.
        signature: the meaning of the inputs and outputs of `joint`.
    """

    joint: Trace
    forward: Trace
    backward: Trace | None
    signature: Signature

    def __str__(self) -> str:
        lines = len(self.joint.bound_symbols)
        count = len(self.signature.gradients)
        return f"<{counted(lines, 'line')}, {counted(count, 'gradient')}; .joint .forward .backward .signature>"

    __repr__ = __str__

    def graph_module(self, name: str = "joint") -> torch.fx.GraphModule:
        """Make a `torch.fx.GraphModule` of a trace; its placeholders have the names of the trace's inputs.

        Args:
            name: `joint`, `forward` or `backward`.

        Returns:
            The graph, which returns the flat outputs.

        Raises:
            InvalidInput: there is no such trace.
            Unsupported: a line cannot be a node.
        """
        trace = getattr(self, name, None) if name in ("joint", "forward", "backward") else None
        if trace is None:
            raise InvalidInput(f"there is no trace {name!r} of this call; the traces are joint, forward and backward")
        return to_fx(trace)


def joint(function: Any, /, *args: Any, **kwargs: Any) -> Graphs:
    """Return the joint, forward and backward traces of a call, and their signature; nothing runs.

    The traces hold the gradients that the options of `sg.jit` choose, before executors claim lines.

    Args:
        function: the result of `sg.jit`, whose options hold; or another function or module, or a
            `torch.export.ExportedProgram`.
        args: arguments of a call. The function runs on fakes of the arguments.
        kwargs: keyword arguments of the call.

    Returns:
        The traces and their signature.

    Raises:
        InvalidInput: the call is not captured as a whole.
        RuleError: a plugin raises; likewise other errors of plugins.
    """
    compiler, entry, results = entry_for(function, args, kwargs)
    names = names_of_arguments(compiler, args, kwargs)
    if entry.bridge is None:
        trace = next(stage for stage in reversed(entry.forward.stages) if _is_unclaimed(stage))
        absent = (None,) * len(trace.outputs)
        return Graphs(trace, trace, None, signature_of(entry.captured, trace, absent, names, results))
    training = entry.bridge.training
    differential, parts = training.joint, training.parts
    signature = signature_of(entry.captured, differential.trace, differential.grad_outputs, names, results)
    return Graphs(differential.trace, parts.forward, parts.backward, signature)


def _is_unclaimed(trace: Trace) -> bool:
    return all(item.implementation is None for item in trace.bound_symbols) and not trace.writes


def entry_for(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Compiler, Entry, Results]:
    """Return the compiler of a function, an entry for a call, which is not kept, and the names of the call's results.

    Raises:
        InvalidInput: the call is not captured as a whole.
    """
    if isinstance(function, torch.export.ExportedProgram):
        function = with_functions(function.module())
    compiler = compiler_for(function)
    selection = undecided(compiler.selection, [])
    noticing = Noticing(selection.handlers)
    entry = compiler.examined(replace(selection, handlers=noticing), args, kwargs)
    if isinstance(entry, Fallback):
        raise InvalidInput(f"{compiler.name} is not captured as a whole: {entry}")
    if entry.captured.trace.numbers:
        raise InvalidInput(f"{compiler.name} has symbolic sizes; jit it with dynamic=False")
    if entry.is_of_frontend:
        raise InvalidInput(f"{compiler.name} is captured by the front end of a part, which names no inputs")
    return compiler, entry, noticing.results


def is_jitted(function: object) -> bool:
    """Check whether `sg.jit` returned an object."""
    return isinstance(function, (JitFunction, JitModule))


def names_of_arguments(compiler: Compiler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, str]:
    """Return the names of the tensors among the flattened arguments of a call, by their places."""
    return argument_names(_binding(compiler.function), flatten_arguments(args, kwargs).leaves, (args, kwargs))


def _binding(function: Callable[..., object]) -> Callable[..., Mapping[str, object]]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C

        def plain(*args: object, **kwargs: object) -> Mapping[str, object]:
            return {**{f"args.{index}": arg for index, arg in enumerate(args)}, **kwargs}

        return plain

    def bind(*args: object, **kwargs: object) -> Mapping[str, object]:
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= arguments.pop(parameter.name, {})
        return arguments

    return bind
