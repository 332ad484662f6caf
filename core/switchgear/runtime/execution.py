"""Running a compiled program, and naming the plugin when one of its kernels fails."""

from __future__ import annotations

from collections.abc import Sequence
from traceback import walk_tb
from typing import Any

from switchgear import torch_internals as internals
from switchgear.errors import ExecutorFailed
from switchgear.passes.pipeline import Program


def run_program(program: Program, arguments: Sequence[Any]) -> Any:
    """The program's outputs; a backward takes `arguments` as a list and empties it.

    An exception of PyTorch's own operators passes as it is, one of a plugin's implementation as `ExecutorFailed`.
    """
    if internals.autocast_active():
        # the casts are part of the trace
        with internals.autocast_off():
            return run_program(program, arguments)
    try:
        return program.function(arguments) if program.boxed else program.function(*arguments)
    except Exception as error:
        code = program.function.__code__
        lines = [number for frame, number in walk_tb(error.__traceback__) if frame.f_code is code]
        failed = program.line(lines[0]) if lines else None
        used = failed.implementation if failed is not None else None
        if failed is None or used is None or used.fn is failed.symbol.fn:
            raise
        raise ExecutorFailed(
            f"executor {used.owner!r} failed in {failed.symbol.name}, called at {failed.source}: "
            f"{type(error).__name__}: {error}. Leave it out with executors=[...], or give its implementation a checker"
        ) from error
