"""Attributes replaced for a while, and who calls what stands in their place."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(holder: object, name: str, value: object) -> Iterator[None]:
    """`holder.name`, an attribute of its own or inherited, is `value`."""
    inherited = name not in vars(holder)
    original = None if inherited else vars(holder)[name]
    setattr(holder, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(holder, name)
        else:
            setattr(holder, name, original)


@contextlib.contextmanager
def redirected(holder: object, name: str, target: Callable[..., object]) -> Iterator[None]:
    """Calls of `holder.name` from this thread are calls of `target`, which is handed the original as first argument."""
    found, thread = inspect.getattr_static(holder, name), threading.get_ident()
    original = getattr(found, "__func__", found)

    def call(*args: object, **kwargs: object) -> Any:
        if threading.get_ident() == thread:
            return target(original, *args, **kwargs)
        return original(*args, **kwargs)

    # `types.ClassMethodDescriptorType`: from PyTorch 2.14 on, `autograd.Function.apply` is a class method written in C
    of_class = isinstance(found, classmethod | types.ClassMethodDescriptorType)
    with replaced(holder, name, classmethod(call) if of_class else call):
        yield


def is_redirection(value: object) -> bool:
    """Whether it is what stands in the place of a function whose calls are redirected."""
    function = value.__func__ if isinstance(value, classmethod) else value
    return isinstance(function, types.FunctionType) and function.__module__ == __name__


def caller(depth: int, *passed: str) -> str:
    """The name of the module whose code called, `depth` frames up from who asks, past those of these packages."""
    frame: types.FrameType | None = sys._getframe(depth + 1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in passed:
        frame = frame.f_back
    return frame.f_globals.get("__name__", "") if frame is not None else ""
