"""Errors that an operator raises for what is in its arguments, and that the function itself catches.

Eager goes on, as where `torch.linalg.cholesky` is tried with more and more jitter; a trace could only raise.
"""

from __future__ import annotations

import dis
import functools
import itertools
import sys
import types
from typing import Any

import torch

from switchgear.capture.call import Call
from switchgear.capture.handler import PASS, Handler
from switchgear.capture.recorder import Recorder
from switchgear.capture.user_code import is_own_file
from switchgear.errors import Unsupported

_OF_LINALG = (
    *("cholesky", "eig", "eigh", "eigvals", "eigvalsh", "inv", "ldl_factor", "lstsq", "lu_factor"),
    *("pinv", "solve", "svd", "svdvals", "tensorinv", "tensorsolve"),
)
_OTHERS = ("cholesky", "cholesky_inverse", "inverse", "multinomial", "pinverse", "svd")


class CaughtErrors(Handler):
    """Calls in a `try` with an `except` of what may raise for its data."""

    functions = frozenset(
        [getattr(torch.linalg, name) for name in _OF_LINALG]
        + [getattr(holder, name) for holder in (torch, torch.Tensor) for name in _OTHERS]
    )

    def take(self, recorder: Recorder, call: Call) -> object:
        """Refuse it, or pass."""
        is_rule = not recorder.tracker.follow_autograd
        frame: types.FrameType | None = None if is_rule else sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") != _START:
            code = frame.f_code
            is_users = not is_own_file(code.co_filename)
            if is_users and any(start <= frame.f_lasti < end for start, end in _caught(code)):
                name = getattr(call.fn, "__name__", "a call")
                raise Unsupported(
                    f"the function catches what {name} raises for its data, in {recorder.here()}; ask for it "
                    "otherwise, as torch.linalg.cholesky_ex tells",
                    splits=False,
                )
            frame = frame.f_back
        return PASS


#: The module that calls the function.
_START = "switchgear.capture.session"


@functools.cache
def _caught(code: types.CodeType) -> tuple[tuple[int, int], ...]:
    """From where to where in a code object errors are caught, by an `except` or `contextlib.suppress`."""
    lines = [*dis.get_instructions(code)]
    places = {line.offset: place for place, line in enumerate(lines)}
    bytecode: Any = dis.Bytecode(code)
    return tuple(
        (entry.start, entry.end)
        for entry in bytecode.exception_entries
        if _catches([line.opname for line in lines[places[entry.target] :]], code.co_names)
    )


def _catches(handler: list[str], names: tuple[str, ...]) -> bool:
    """Whether what runs where an error is raised is more than a `finally`, or the end of a `with`."""
    if handler[0] != "PUSH_EXC_INFO":
        return False
    if handler[1] in ("POP_TOP", "WITH_EXCEPT_START"):
        return handler[1] == "POP_TOP" or "suppress" in names
    loads = itertools.takewhile(lambda name: name.startswith(("LOAD", "BUILD")), handler[1:])
    return handler[1 + len([*loads])] == "CHECK_EXC_MATCH"
