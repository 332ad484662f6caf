"""Which code runs while a function is captured: code tells it itself from Python 3.12 on, a trace before that."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from switchgear.errors import Unsupported
from switchgear.patches import redirected

_MONITORING: Any = getattr(sys, "monitoring", None)
_set_trace, _get_trace = sys.settrace, sys.gettrace
#: Told of code that starts, and its global variables.
Started: TypeAlias = Callable[[types.CodeType, dict[str, Any]], None]


class _Trace:
    """A trace of this thread. Entered, it is off: for PyTorch's own calls, most of what runs in a capture."""

    def __init__(self, started: Started) -> None:
        self._started = started
        self._is_active = self._is_lost = False
        #: A debugger's or what measures coverage.
        self._other: Any = None
        #: How often it is entered.
        self._depth = 0
        self._ran: dict[int, types.CodeType] = {}
        #: The ids of code objects that started in PyTorch's own calls.
        self.apart = frozenset[int]()
        self._trace = self._called

    def _called(self, frame: types.FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if id(code) not in self._ran:
            try:
                self._started(code, frame.f_globals)
            except BaseException:
                if sys.getprofile() is None:
                    sys.setprofile(self._went_on)
                raise
            self._ran[id(code)] = code
        if self._other is None:
            return None
        inside = self._other(frame, event, argument)
        _set_trace(self._trace)  # for it may have put itself there
        return inside

    def _went_on(self, frame: types.FrameType, event: str, argument: object) -> None:
        """Python ends a trace that raises, and the function may catch that, or do what is to be done at the end."""
        sys.setprofile(None)
        if self._is_active and not self._depth:
            _set_trace(self._trace)
            if event == "call":
                self._called(frame, event, argument)

    def _set_other(self, trace: object) -> None:
        if self._other is None:
            raise Unsupported(
                "the function sets a trace of its own; do it outside of the function", splits=False
            )
        self._other = trace
        if self._depth:
            _set_trace(self._other)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Take note inside."""
        self._is_active, self._other = True, sys.gettrace()
        _set_trace(self._trace)
        try:
            with (
                redirected(sys, "gettrace", lambda _: self._other),
                redirected(sys, "settrace", lambda _, trace: self._set_other(trace)),
            ):
                yield
        finally:
            self._is_active = False
            _set_trace(self._other)
            if sys.getprofile() == self._went_on:
                sys.setprofile(None)

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1 and self._is_active:
            self._is_lost |= _get_trace() is not self._trace
            _set_trace(self._other)

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._is_active:
            _set_trace(self._trace)

    def ran(self) -> dict[int, types.CodeType]:
        """The code objects that started until now, by id.

        Raises `Unsupported` where Python ended the trace, as it does at the end of the stack.
        """
        if self._is_lost or (self._is_active and _get_trace() is not self._trace):
            raise Unsupported("the function went on where Python's stack had ended")
        return {**self._ran}


class _Events:
    """The first start of each code object in this thread. Entered, it is for PyTorch's own calls."""

    def __init__(self, started: Started) -> None:
        self._begin = started
        self._thread = threading.get_ident()
        self._depth = 0
        self._ran: dict[int, types.CodeType] = {}
        self.apart = set[int]()

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1

    def _started(self, code: types.CodeType, _: int) -> object:
        if threading.get_ident() != self._thread:
            return None
        self._ran[id(code)] = code
        if self._depth:
            self.apart.add(id(code))
        self._begin(code, sys._getframe(1).f_globals)
        return _MONITORING.DISABLE

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Take note inside.

        Raises `Unsupported` where all tools are taken.
        """
        free = (tool for tool in range(6) if _MONITORING.get_tool(tool) is None)
        tool = next(free, None)
        if tool is None:
            raise Unsupported(
                "all tools of sys.monitoring are taken, so nothing tells which code runs"
            )
        start = _MONITORING.events.PY_START
        _MONITORING.use_tool_id(tool, "switchgear")
        _MONITORING.register_callback(tool, start, self._started)
        _MONITORING.set_events(tool, start)
        _MONITORING.restart_events()  # of what has started before
        try:
            yield
        finally:
            _MONITORING.set_events(tool, 0)
            _MONITORING.register_callback(tool, start, None)
            _MONITORING.free_tool_id(tool)

    def ran(self) -> dict[int, types.CodeType]:
        """The code objects that started until now, by id."""
        return {**self._ran}


RunningCode: type[_Trace | _Events] = _Trace if _MONITORING is None else _Events
