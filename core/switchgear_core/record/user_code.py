"""User code: its nearest frame, outside files of PyTorch and Switchgear, and calls that run none of it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pathlib
import sys
import traceback
import types
import warnings
from collections.abc import Iterable

import torch
import typing_extensions

from switchgear_core import own

_PYTORCH = str(pathlib.Path(torch.__file__).parent) + os.sep  # torch_geometric lies next to torch
#: The package that reads schemas, at the first call of an operator that is asked for its aliases.
_TORCHGEN = str(pathlib.Path(torch.__file__).parent.parent / "torchgen") + os.sep
#: PyTorch's context managers are entered through contextlib; watched functions are called through the other modules.
_OWN_FILES = (
    _PYTORCH,
    _TORCHGEN,
    *(
        str(module.__file__)
        for module in (contextlib, logging, os, pathlib, typing_extensions, warnings)
    ),
    "<frozen ",
)
_STANDARD = str(pathlib.Path(functools.__file__).parent)
#: Types of functions in C without calls of user code on plain tensors.
_IN_C = (
    *(types.BuiltinFunctionType, types.MethodDescriptorType),
    *(types.MethodWrapperType, types.WrapperDescriptorType),
)
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
#: Modules of functions in Python without calls of user code either.
_OF_DATA = frozenset({"torch.nn.functional", "torch.functional", torch.Tensor.split.__module__})
_DATA = frozenset(
    {
        *(torch.Tensor, torch.nn.Parameter, torch.dtype, torch.Size),
        *(type(None), bool, int, float, str, list, tuple),
    }
)
_BACKWARD = torch.Tensor.backward


@functools.cache
def is_of_pytorch(file: str) -> bool:
    """Check whether a file belongs to PyTorch or Switchgear."""
    return file.startswith((_PYTORCH, _TORCHGEN)) or own.is_own(file)


@functools.cache
def is_standard(file: str) -> bool:
    """Check whether a file belongs to the standard library, whatever the location in `sys.modules`."""
    return file.startswith("<frozen ") or (file.startswith(_STANDARD) and not is_installed(file))


def is_installed(file: str) -> bool:
    """Check whether a file belongs to an installed package."""
    return any(folder in file for folder in ("site-packages", "dist-packages"))


@functools.cache
def is_own_file(name: str) -> bool:
    """Check whether a file belongs to PyTorch, Switchgear, or a module through which they call."""
    return name.startswith(_OWN_FILES) or own.is_own(name)


def runs_no_user_code(fn: object, kinds: Iterable[type], values: Iterable[object]) -> bool:
    """Check whether a PyTorch call, with these kinds of tensors among the given values, runs no user code."""
    if not _PLAIN.issuperset(kinds):
        return False
    if isinstance(fn, _IN_C):
        return True
    is_of_data = getattr(fn, "__module__", None) in _OF_DATA and fn is not _BACKWARD
    return is_of_data and _DATA.issuperset(map(type, values))


def user_frame() -> tuple[types.FrameType | None, int]:
    """Return the nearest frame of the user, or None, and the `stacklevel` with which a warning names its line."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and is_own_file(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return frame, level


def raising_line(error: Exception) -> str:
    """Return the user's line raising an error."""
    places = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    return next((f"{name}:{line}" for name, line in reversed(places) if not is_own_file(name)), "")


def raising_module(error: Exception) -> str:
    """Return the name of the module whose code raised an error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__", "")) if frames else ""
