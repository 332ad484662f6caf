"""Where the user is: the nearest frame of the stack that is neither PyTorch's nor ours."""

from __future__ import annotations

import contextlib
import sys
import types
from pathlib import Path

import torch

#: A context manager of PyTorch's is entered by way of contextlib.
_OWN_FILES = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent.parent),
    contextlib.__file__,
)


def user_frame() -> tuple[types.FrameType | None, int]:
    """That frame, None if there is none, and the `stacklevel` by which a warning of the caller's names its line."""
    frame: types.FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        frame, level = frame.f_back, level + 1
    return frame, level
