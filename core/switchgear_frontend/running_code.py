"""Running code during a capture: Python code that starts, and calls of functions in C.

Reported by `sys.monitoring` from Python 3.12 on, and by a profile function before.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from switchgear_core.errors import Unsupported
from switchgear_core.patches import Change
from switchgear_core.record.user_code import is_of_pytorch, is_standard

_MONITORING: Any = getattr(sys, "monitoring", None)
_set_profile, _get_profile = sys.setprofile, sys.getprofile
#: Callback for code at its first start.
Started: TypeAlias = Callable[[types.FrameType], None]
#: Callback for code that is about to call a function in C.
Called: TypeAlias = Callable[[types.FrameType, Any], None]


def _is_for_us(frame: types.FrameType, code: types.CodeType) -> bool:
    """Check whether capture itself calls the standard library, which the function may call later."""
    caller = frame.f_back
    return (
        caller is not None
        and is_standard(code.co_filename)
        and is_of_pytorch(caller.f_code.co_filename)
    )


class _Profile:
    """A profile function of this thread. Entering turns it off for PyTorch's own calls, the bulk of a capture."""

    def __init__(self, started: Started, on_call: Called) -> None:
        self._started, self._on_call = started, on_call
        self._is_active = self._is_lost = False
        #: Number of current entries.
        self._depth = 0
        self._ran: dict[int, types.CodeType] = {}
        #: Ids of code that started in PyTorch's own calls: none, because the profile function is off then.
        self.internal_ids = frozenset[int]()
        self._profile, self._resumed = self._on_event, self._resume

    def _on_event(self, frame: types.FrameType, event: str, argument: object) -> None:
        try:
            if event == "c_call":
                if not is_of_pytorch(frame.f_code.co_filename):
                    self._on_call(frame, argument)
            elif event == "call":
                self._start(frame, frame.f_code)
        except BaseException:
            self._resume_after(frame)
            raise

    def _start(self, frame: types.FrameType, code: types.CodeType) -> None:
        if id(code) not in self._ran and not _is_for_us(frame, code):
            self._started(frame)
            self._ran[id(code)] = code

    def _resume_after(self, frame: types.FrameType | None) -> None:
        """Reinstall the profile function: Python removes it after an error inside."""
        if sys.gettrace() is None:
            sys.settrace(self._resumed)
            while frame is not None:
                frame.f_trace, frame = self._resumed, frame.f_back

    def _resume(self, frame: types.FrameType, event: str, _: object) -> None:
        sys.settrace(None)
        if self._is_active and not self._depth:
            _set_profile(self._profile)
            if event == "call":
                self._on_event(frame, event, None)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Return a context that reports code; an active profiler is paused inside.

        Raises `Unsupported` if the profiler cannot be paused.
        """
        other: Any = _get_profile()
        is_profiler = hasattr(other, "enable") and hasattr(other, "disable")
        if other is not None and not (is_profiler or callable(other)):
            raise Unsupported(
                "a profiler is active, so nothing tells which code runs; make the first call without it"
            )
        change = Change(self._stop, other, is_profiler)
        try:
            if is_profiler:
                other.disable()
            self._is_active = True
            _set_profile(self._profile)
            yield
        finally:
            change.undo()

    def _stop(self, other: Any, is_profiler: bool) -> None:
        self._is_active = False
        if sys.gettrace() == self._resumed:
            sys.settrace(None)
        _set_profile(None if is_profiler else other)
        if is_profiler:
            other.enable()

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1 and self._is_active:
            self._is_lost |= _get_profile() is not self._profile
            _set_profile(None)

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._is_active:
            _set_profile(self._profile)

    def ran(self) -> dict[int, types.CodeType]:
        """Return the code objects started so far, by id.

        Raises `Unsupported` if Python removed the profile function, as it does at the end of the stack.
        """
        if self._is_lost or (
            self._is_active and not self._depth and _get_profile() is not self._profile
        ):
            raise Unsupported("the function went on where Python's stack had ended")
        return {**self._ran}


class _Events:
    """Events of the current thread. Entering marks them as events of PyTorch's own calls."""

    def __init__(self, started: Started, on_call: Called) -> None:
        self._begin, self._on_call = started, on_call
        self._thread = threading.get_ident()
        self._depth = 0
        self._ran: dict[int, types.CodeType] = {}
        self.internal_ids = set[int]()

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1

    def _started(self, code: types.CodeType, _: int) -> object:
        if threading.get_ident() != self._thread:
            return None
        if _is_for_us(sys._getframe(1), code):
            return None
        self._ran[id(code)] = code
        if self._depth:
            self.internal_ids.add(id(code))
        self._begin(sys._getframe(1))
        return _MONITORING.DISABLE

    def _calls(self, code: types.CodeType, _: int, function: Any, first: Any) -> object:
        if is_of_pytorch(code.co_filename):
            return _MONITORING.DISABLE
        if not self._depth and threading.get_ident() == self._thread:
            if isinstance(function, types.MethodDescriptorType):
                function = function.__get__(first)
            if isinstance(function, types.BuiltinFunctionType):
                self._on_call(sys._getframe(1), function)
        return None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Return a context that reports code.

        Raises `Unsupported` if all tools are in use.
        """
        free = (tool for tool in range(6) if _MONITORING.get_tool(tool) is None)
        tool = next(free, None)
        if tool is None:
            raise Unsupported(
                "all tools of sys.monitoring are taken, so nothing tells which code runs"
            )
        events = _MONITORING.events
        callbacks = {
            events.PY_START: self._started,
            events.CALL: self._calls,
        }
        change = Change(_free, tool, callbacks)
        try:
            _MONITORING.use_tool_id(tool, "switchgear")
            for event, callback in callbacks.items():
                _MONITORING.register_callback(tool, event, callback)
            _MONITORING.set_events(tool, events.PY_START | events.CALL)
            _MONITORING.restart_events()  # also events of code started before
            yield
        finally:
            change.undo()

    def ran(self) -> dict[int, types.CodeType]:
        """Return the code objects started so far, by id."""
        return {**self._ran}


def _free(tool: int, callbacks: Iterable[int]) -> None:
    if _MONITORING.get_tool(tool) == "switchgear":
        _MONITORING.set_events(tool, 0)
        for event in callbacks:
            _MONITORING.register_callback(tool, event, None)
        _MONITORING.free_tool_id(tool)


RunningCode: type[_Profile | _Events] = _Profile if _MONITORING is None else _Events
