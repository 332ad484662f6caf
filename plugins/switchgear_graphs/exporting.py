"""`export`: a captured program as a `torch.export.ExportedProgram`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from switchgear.jitting import jit
from switchgear_core.errors import Unsupported
from switchgear_core.passes.programs import Programs
from switchgear_core.record.signature import Argument, Closure, InputSource, ModuleState
from switchgear_core.record.structure import flatten
from switchgear_graphs.graph_modules import to_fx
from switchgear_graphs.joint_graphs import entry_for, is_jitted
from switchgear_runtime.entry import Entry
from switchgear_runtime.epilogue import finish
from switchgear_runtime.last_call import compiler_of
from switchgear_tools.before_call import undecided


class _Program(nn.Module):
    """A captured call as a module with the state of the original."""

    def __init__(
        self, entry: Entry, state: nn.Module | None, run: Callable[..., Sequence[Any]], signature: Callable[..., Any]
    ) -> None:
        super().__init__()
        captured = entry.captured
        if state is not None:
            for name, child in state.named_children():
                self.add_module(name, child)
            for name, parameter in state.named_parameters(recurse=False):
                self.register_parameter(name, parameter)
            for name, buffer in state.named_buffers(recurse=False):
                self.register_buffer(name, buffer, name not in state._non_persistent_buffers_set)
        for index, source in enumerate(captured.sources):
            if isinstance(source, Closure):
                self.register_buffer(f"constant_{index}", source.tensor)
        # torch.export loses writes through .data; versions, by which eager tells them, it does not have
        mutations = tuple([replace(one, hidden=False) for one in captured.outputs.mutations])
        outputs = replace(captured.outputs, mutations=mutations)

        @functools.wraps(signature)
        def forward(*args: Any, **kwargs: Any) -> Any:
            leaves = flatten((args, kwargs))[0]
            inputs = [self._input(index, source, leaves) for index, source in enumerate(captured.sources)]
            result = finish(outputs, run(*inputs), inputs)
            for after in captured.after:
                result = after(result, inputs)
            return result

        self.forward = forward

    def _input(self, index: int, source: InputSource, leaves: list[Any]) -> torch.Tensor:
        if isinstance(source, Argument):
            return leaves[source.index]  # type: ignore[no-any-return]
        if isinstance(source, ModuleState):
            is_parameter = source.slots == "_parameters"
            return self.get_parameter(source.path) if is_parameter else self.get_buffer(source.path)
        return self.get_buffer(f"constant_{index}")


def export(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, keep: bool = False
) -> torch.export.ExportedProgram:
    """Export the program of a call by `torch.export`.

    Args:
        function: the result of `sg.jit`, whose options hold; or another function or module.
        args: the arguments of the call.
        kwargs: its keyword arguments.
        keep: whether lines that executors claim run the executors' implementations: their custom operators stay in the
            program, and a process that loads it needs their packages. False has PyTorch's operators alone.

    Returns:
        The exported program, with the qualified names of the module's parameters and buffers.

    Raises:
        InvalidInput: the call is not captured as a whole.
        Unsupported: the program depends on state that an exported program does not hold.
    """
    call = tuple(args), dict(kwargs or {})
    jitted = function if is_jitted(function) else jit(function)
    own = compiler_of(jitted)
    subject: Any = own.module if isinstance(jitted, nn.Module) else own.function
    # a program that branches on data is for few calls; libraries have a path without branches
    plain = jit(subject, **{**own.options, "specialize_on_data": False, "dynamic": False})
    compiler, entry, _ = entry_for(plain, *call)
    captured = entry.captured
    strange = [one for one in captured.sources if not isinstance(one, (Argument, ModuleState, Closure))]
    if strange:
        raise Unsupported(f"the program reads {strange[0]}, which is no argument, parameter or buffer; pass it")
    checks = [line for line in captured.trace.bound_symbols if line.is_check]
    if checks:
        raise Unsupported(
            f"the program checks data, in {checks[0].source}; write it without the branch, by torch.where"
        )
    run: Callable[..., Any] = to_fx(captured.trace)
    if keep:
        run = Programs(captured.trace, undecided(compiler.selection, [])).forward({})().function
    module = _Program(entry, compiler.module, run, compiler.function)
    return torch.export.export(module, *call, strict=False)
