"""Running a compiled program, and naming the plugin when one of its kernels fails."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from switchgear.errors import ExecutorFailed
from switchgear.passes.pipeline import Program


def run_program(program: Program, arguments: Sequence[Any] | list[Any]) -> Any:
    """The program's outputs; a backward takes `arguments` as a list and empties it.

    An exception of PyTorch's own operators passes as it is, one of a plugin's implementation as `ExecutorFailed`.
    """
    try:
        return program.function(arguments) if program.boxed else program.function(*arguments)
    except Exception as error:
        failed = _explained(program, error)
        if failed is None:
            raise
        raise failed from error


def _explained(program: Program, error: Exception) -> ExecutorFailed | None:
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_code is not program.function.__code__:
        frame = frame.tb_next
    bound_symbol = program.line(frame.tb_lineno) if frame is not None else None
    if bound_symbol is None or bound_symbol.implementation is None:
        return None
    implementation = bound_symbol.implementation
    if implementation.fn is bound_symbol.symbol.fn:
        return None
    return ExecutorFailed(
        f"executor {implementation.owner!r} failed in {bound_symbol.symbol.name}, called at {bound_symbol.source}: "
        f"{type(error).__name__}: {error}. Leave it out with executors=[...], or give its implementation a checker"
    )
