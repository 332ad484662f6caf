"""Running a compiled program, and naming the plugin when one of its kernels fails.

In forward mode, PyTorch's operators replace implementations of plugins, so tangents equal eager's.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from traceback import walk_tb
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.aliasing import aliased_argument
from switchgear_core.ir.choice import Implementation
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.free_last_used import free_last_used
from switchgear_core.ir.symbol import AFTER, BOX, DEL, BoundSymbol, changed
from switchgear_core.ir.trace import compile_trace
from switchgear_core.passes.pipeline import Program
from switchgear_core.record.attempts import compiles
from switchgear_runtime.checking import fault, is_never_blamed, run_checked

_COPY = torch.ops.aten.copy.default


def runner(program: Program, *, autocast: bool) -> Callable[..., Any]:
    """Return the callable that runs a program; with `autocast`, autocast is off inside, because casts are in the trace.

    The callable takes the program's inputs; for a boxed program one list, then empty. Exceptions of PyTorch's own
    operators pass unchanged. Where a plugin's implementation raises, PyTorch's operators run instead: their exception
    is raised if there is one, else `ExecutorFailed`.
    """
    is_blameless = all(map(is_never_blamed, lines_of(program)))
    run = program.function if is_blameless else _blaming(program)
    if not is_blameless or any(item.symbol.fn is _COPY for item in lines_of(program)):
        run = _by_operators_in_forward_mode(program, run)
    return _without_autocast(run) if autocast else run


def lines_of(program: Program) -> list[BoundSymbol]:
    """Return the calls of a program."""
    lines = program.stages[-1].bound_symbols
    return [item for item in lines if item.symbol not in (AFTER, BOX, DEL)]


def _by_operators_in_forward_mode(
    program: Program, function: Callable[..., object]
) -> Callable[..., object]:
    """Replace plugins' implementations by their operators in forward mode: implementations have no tangents."""
    forward_mode_active = internals.forward_mode_active

    @cache
    @compiles
    def by_operators() -> Callable[..., object]:
        trace = program.stages[
            -2
        ]  # the stage before memory is freed: the last stage frees as implementations need
        body = [*map(_with_tangents, trace.bound_symbols)]
        with torch.no_grad(), internals.autocast_off():
            freed = free_last_used(replace(trace, bound_symbols=tuple(body)))
            return compile_trace(freed, boxed=program.boxed)

    def run(*arguments: object) -> Any:
        return by_operators()(*arguments) if forward_mode_active() else function(*arguments)

    return run


def _with_tangents(item: BoundSymbol) -> BoundSymbol:
    if item.symbol.fn is _COPY:  # no formula in PyTorch 2.13; tests/core/test_forward_mode.py
        return changed(item, implementation=Implementation("torch", _copied))
    return item if is_never_blamed(item) else changed(item, implementation=None)


def _copied(like: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return torch.empty_like(like).copy_(source)


def _without_autocast(function: Callable[..., object]) -> Callable[..., object]:
    def run(*arguments: object) -> Any:
        with internals.autocast_off():
            return function(*arguments)

    return run


def maybe_views(program: Program) -> tuple[int, ...]:
    """Return the positions of outputs that may be views; PyTorch allocates the others."""
    outputs = program.stages[-1].outputs
    names = {proxy.name for proxy in outputs if proxy is not None}
    anew: dict[str, bool] = {}
    for stage in reversed(program.stages):
        # a claimed composite has lost its operators; an earlier stage has its operators
        makers = [
            item
            for item in stage.bound_symbols
            if not names.isdisjoint([proxy.name for proxy in item.outputs])
        ]
        if stage is program.stages[-1]:
            names = {
                p.name
                for item in makers
                if is_pytorch(item) and is_never_blamed(item)
                for p in item.outputs
            }
        for leaf in leaves_of(makers):
            if isinstance(leaf.symbol.fn, internals.OpOverload):
                for proxy in leaf.outputs:
                    anew.setdefault(
                        proxy.name, proxy.name in names and aliased_argument(leaf) is None
                    )
    return tuple(
        [
            i
            for i, proxy in enumerate(outputs)
            if proxy is not None and not anew.get(proxy.name, False)
        ]
    )


def is_pytorch(item: BoundSymbol) -> bool:
    """Check whether a line is a single call of a PyTorch operator, without any Python."""
    fn: Any = item.implementation.fn if item.implementation else item.symbol.fn
    if isinstance(fn, internals.OpOverload):
        return fn.namespace == "aten"
    return fn is torch.Tensor.__getitem__ or isinstance(
        fn, (types.BuiltinFunctionType, types.MethodDescriptorType)
    )


def _blaming(program: Program) -> Callable[..., object]:
    """Return the function of a program with implementations of plugins, which checks results in the first run."""
    function, values = program.function, program.check
    checked = False

    def run(*arguments: object) -> Any:
        nonlocal checked
        if not checked:
            results = run_checked(program, arguments, values=values)
            checked = not values
            return results
        try:
            return function(*arguments)
        except Exception as error:
            failed = _failed(program, error)
            if failed is None or is_never_blamed(failed[0]):
                raise
            raise fault(program, *failed, error) from error

    return run


def _failed(program: Program, error: Exception) -> tuple[BoundSymbol, Mapping[str, Any]] | None:
    """Return the line that raised, and the values at the time."""
    code = program.function.__code__
    places = [
        (frame, number) for frame, number in walk_tb(error.__traceback__) if frame.f_code is code
    ]
    if not places:
        return None
    frame, number = places[0]
    item = program.line(number)
    return None if item is None else (item, frame.f_locals)
