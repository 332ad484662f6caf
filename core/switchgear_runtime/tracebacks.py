"""Tracebacks of errors from calls: they show the user's frames, and none of Switchgear's."""

from __future__ import annotations

import contextlib
import os
import types

from switchgear_core import own
from switchgear_core.errors import CaptureError
from switchgear_core.ir.symbol import Source
from switchgear_core.ir.trace import SOURCES
from switchgear_core.record.recorder import active_recorder

#: The variable that leaves tracebacks unchanged if set to 1.
FULL_VARIABLE = "SWITCHGEAR_FULL_TRACEBACK"
_GENERATED = "<switchgear "


def hide_own_frames(error: BaseException | None) -> None:
    """Remove Switchgear's frames from an error and its causes; a compiled line appears as its user's line.

    Inside a capture the traceback stays unchanged, because the frames tell whose fault an error is.
    """
    if os.environ.get(FULL_VARIABLE) == "1" or active_recorder() is not None:
        return
    while error is not None:
        error.__traceback__ = _of_the_user(error.__traceback__)
        cause = error.__cause__
        is_of_fakes = cause is None or type(cause).__module__.startswith("torch._")
        if isinstance(error, CaptureError) and is_of_fakes:
            error.__cause__ = None  # the context is not shown either: the message is complete
        error = error.__cause__


def place_of(error: BaseException) -> str:
    """Return the user's line whose compiled line raised an error, as `, in file:line`."""
    below, place = error.__traceback__, ""
    while below is not None:
        source = _source(below)
        place = f", in {source.file}:{source.line}" if source else place
        below = below.tb_next
    return place


def _of_the_user(below: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without Switchgear's frames, and without frames of the standard library below them."""
    frames: list[tuple[types.TracebackType, bool]] = []
    is_own = False
    while below is not None:
        file = below.tb_frame.f_code.co_filename
        is_own = (file.startswith(_GENERATED) or own.is_own(file)) or (
            is_own and file == contextlib.__file__
        )
        frames.append((below, is_own))
        below = below.tb_next
    visible: types.TracebackType | None = None
    for entry, is_own in reversed(frames):
        source = _source(entry)
        if source is not None:
            for place in (source, *source.callers):
                # no instruction: its columns would belong to another line
                visible = types.TracebackType(visible, _frame(place), -1, place.line)
        elif not is_own:
            visible = types.TracebackType(visible, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return visible


def _source(entry: types.TracebackType) -> Source | None:
    """Return the user's line that a line of a compiled program comes from, if any."""
    sources = entry.tb_frame.f_globals.get(SOURCES)
    if sources is None or not entry.tb_frame.f_code.co_filename.startswith(_GENERATED):
        return None
    source: Source | None = sources[entry.tb_lineno - 1]
    return source


def _frame(source: Source) -> types.FrameType:
    """Return a frame in the function of a source."""
    space: dict[str, types.FrameType] = {}
    code = compile("import sys; frame = sys._getframe()", source.file, "exec")
    exec(code.replace(co_name=source.function), space)
    return space.pop("frame")
