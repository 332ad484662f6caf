"""Where the user is: the nearest frame of the stack that is neither PyTorch's nor ours."""

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

import torch
import typing_extensions

#: A context manager of PyTorch's is entered by way of contextlib, what is watched called by way of the others.
_OWN_FILES = (
    str(pathlib.Path(torch.__file__).parent),
    str(pathlib.Path(__file__).parent.parent),
    *(
        str(module.__file__)
        for module in (contextlib, logging, os, pathlib, typing_extensions, warnings)
    ),
    "<frozen ",
)


@functools.cache
def is_own_file(name: str) -> bool:
    """Whether a file is PyTorch's or ours."""
    return name.startswith(_OWN_FILES)


def user_frame() -> tuple[types.FrameType | None, int]:
    """That frame, None if there is none, and the `stacklevel` by which a warning of the caller's names its line."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and is_own_file(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return frame, level


def raising_module(error: Exception) -> str:
    """The name of the module whose code raised an error."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__", "")) if frames else ""
