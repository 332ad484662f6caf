"""Which code runs while a function is captured: code tells it itself from Python 3.12 on, a profile before that."""

from __future__ import annotations

import contextlib
import cProfile
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

_MONITORING: Any = getattr(sys, "monitoring", None)


class _Profile:
    """A profile of this thread. Entered, it is off: for PyTorch's own calls, most of what runs in a capture."""

    def __init__(self) -> None:
        self._profile: cProfile.Profile | None = None
        #: How often it is entered.
        self._depth = 0
        #: The ids of code objects that started in PyTorch's own calls.
        self.apart = frozenset[int]()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Take note inside, where the user's own profiler is not at work."""
        if sys.getprofile() is not None:
            yield
            return
        self._profile = cProfile.Profile(builtins=False, subcalls=False)
        with self._profile:
            yield

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1 and self._profile is not None:
            self._profile.disable()

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._profile is not None:
            self._profile.enable()

    def ran(self) -> dict[int, types.CodeType] | None:
        """The code objects that ran until now, by id; None if that is not known."""
        if self._profile is None:
            return None
        self._profile.disable()
        codes = [entry.code for entry in self._profile.getstats()]
        return {id(code): code for code in codes if isinstance(code, types.CodeType)}


class _Events:
    """The first start of each code object in this thread. Entered, it is for PyTorch's own calls."""

    def __init__(self) -> None:
        self._tool: int | None = None
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
        return _MONITORING.DISABLE

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Take note inside, where not all tools are the user's."""
        free = (tool for tool in range(6) if _MONITORING.get_tool(tool) is None)
        self._tool = next(free, None)
        if self._tool is None:
            yield
            return
        start = _MONITORING.events.PY_START
        _MONITORING.use_tool_id(self._tool, "switchgear")
        _MONITORING.register_callback(self._tool, start, self._started)
        _MONITORING.set_events(self._tool, start)
        _MONITORING.restart_events()  # of what has started before
        try:
            yield
        finally:
            _MONITORING.set_events(self._tool, 0)
            _MONITORING.register_callback(self._tool, start, None)
            _MONITORING.free_tool_id(self._tool)

    def ran(self) -> dict[int, types.CodeType] | None:
        """The code objects that ran until now, by id; None if that is not known."""
        return None if self._tool is None else {**self._ran}


RunningCode: type[_Profile | _Events] = _Profile if _MONITORING is None else _Events
