"""Running a compiled program, and naming the plugin when one of its kernels fails."""

from __future__ import annotations

import types
from collections.abc import Callable
from traceback import walk_tb
from typing import Any

import torch

from switchgear import torch_internals as internals
from switchgear.aliasing import aliased_argument
from switchgear.composites import leaves_of
from switchgear.errors import ExecutorFailed
from switchgear.passes.pipeline import Program
from switchgear.symbol import DEL, BoundSymbol

#: So many operators have to be run for going below autograd to pay.
_WORTHWHILE = 3


def runner(program: Program, *, autocast: bool) -> Callable[..., Any]:
    """What runs a program where autocast is on or not; its casts are part of the trace, so it runs with autocast off.

    It takes the program's inputs; for a boxed program they are one list, which it empties. An exception of PyTorch's
    own operators passes as it is, one of a plugin's implementation as `ExecutorFailed`.
    """
    run = program.function if all(map(_never_blamed, _lines(program))) else _blaming(program)
    if _goes_below(program):
        run = _below_autograd(run)
    return _without_autocast(run) if autocast else run


def _lines(program: Program) -> list[BoundSymbol]:
    return [item for item in program.stages[-1].bound_symbols if item.symbol is not DEL]


def _goes_below(program: Program) -> bool:
    lines = _lines(program)
    return len(lines) >= _WORTHWHILE and all(map(_is_pytorch, lines))


def _below_autograd(function: Callable[..., Any]) -> Callable[..., Any]:
    below_autograd, forward_mode_active = internals.below_autograd, internals.forward_mode_active

    def run(*arguments: Any) -> Any:
        if forward_mode_active():
            return function(*arguments)
        with below_autograd():
            return function(*arguments)

    return run


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        with internals.autocast_off():
            return function(*arguments)

    return run


def maybe_views(program: Program) -> tuple[int, ...]:
    """The positions of those outputs of a program that may be views; the others PyTorch makes anew.

    Below autograd an operator that is none of a view gives one if its kernel ends in one (`select_scatter`).
    """
    outputs = program.stages[-1].outputs
    if _goes_below(program):
        return tuple([i for i, proxy in enumerate(outputs) if proxy is not None])
    wanted = {proxy.name for proxy in outputs if proxy is not None}
    anew: dict[str, bool] = {}
    for stage in reversed(program.stages):
        # what was claimed whole has lost its parts, an earlier stage has them
        makers = [item for item in stage.bound_symbols if not wanted.isdisjoint(proxy.name for proxy in item.outputs)]
        if stage is program.stages[-1]:
            wanted = {p.name for item in makers if _is_pytorch(item) and _never_blamed(item) for p in item.outputs}
        for leaf in leaves_of(makers):
            if isinstance(leaf.symbol.fn, torch._ops.OpOverload):
                for proxy in leaf.outputs:
                    anew.setdefault(proxy.name, proxy.name in wanted and aliased_argument(leaf) is None)
    return tuple([i for i, proxy in enumerate(outputs) if proxy is not None and not anew.get(proxy.name, False)])


def _is_pytorch(item: BoundSymbol) -> bool:
    """Whether a line is one call of an operator of PyTorch's, with which nothing of Python runs."""
    fn: Any = item.implementation.fn if item.implementation else item.symbol.fn
    if isinstance(fn, torch._ops.OpOverload):
        return fn.namespace == "aten"
    return isinstance(fn, (types.BuiltinFunctionType, types.MethodDescriptorType))


def _never_blamed(item: BoundSymbol) -> bool:
    return item.implementation is None or item.implementation.fn is item.symbol.fn


def _blaming(program: Program) -> Callable[..., Any]:
    function = program.function

    def run(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            failed = _failed(program, error)
            if failed is None or failed.implementation is None or _never_blamed(failed):
                raise
            raise ExecutorFailed(
                f"executor {failed.implementation.owner!r} failed in {failed.symbol.name}, called at {failed.source}: "
                f"{type(error).__name__}: {error}. Leave it out with executors=[...], or give its implementation a "
                "checker"
            ) from error

    return run


def _failed(program: Program, error: Exception) -> BoundSymbol | None:
    code = program.function.__code__
    lines = [number for frame, number in walk_tb(error.__traceback__) if frame.f_code is code]
    return program.line(lines[0]) if lines else None
