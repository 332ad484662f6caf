"""The lock under which functions are captured and traces compiled."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from switchgear_core import torch_private as internals
from switchgear_core.patches import Change, Lock
from switchgear_core.record.attempts import leaves_nothing

P = ParamSpec("P")
R = TypeVar("R")

#: Held while capturing and differentiating: the patches and flags below are process-wide.
CAPTURE_LOCK = Lock()


def compiles(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function for capture or compilation: one thread runs it, and a failure leaves no state behind.

    The garbage collector is off, because it would scan the many new objects repeatedly.
    """

    @leaves_nothing
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with CAPTURE_LOCK, _no_garbage(), internals.saved_tensors_hooks_off():
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    if not gc.isenabled():
        yield
        return
    change = Change(gc.enable)
    try:
        gc.disable()
        yield
    finally:
        change.undo()
