"""Which code runs while a function is captured: code tells it itself from Python 3.12 on, a profile before that."""

from __future__ import annotations

import contextlib
import cProfile
import sys
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

    def watch(self, code: types.CodeType) -> None:
        """All code is watched."""

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


class _Events(contextlib.nullcontext[None]):
    """The starts of the code that is watched, and of what is defined in it."""

    def __init__(self) -> None:
        super().__init__()
        self._tool: int | None = None
        self._watched: list[types.CodeType] = []
        self._ran: dict[int, types.CodeType] = {}

    def watch(self, code: types.CodeType) -> None:
        """Have it tell when it starts."""
        if self._tool is not None:
            _MONITORING.set_local_events(self._tool, code, _MONITORING.events.PY_START)
        self._watched.append(code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self.watch(constant)

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
        _MONITORING.register_callback(
            self._tool, start, lambda code, _: self._ran.setdefault(id(code), code) and None
        )
        try:
            yield
        finally:
            for code in self._watched:
                _MONITORING.set_local_events(self._tool, code, 0)
            _MONITORING.register_callback(self._tool, start, None)
            _MONITORING.free_tool_id(self._tool)

    def ran(self) -> dict[int, types.CodeType] | None:
        """The code objects that ran until now, by id; None if that is not known."""
        return None if self._tool is None else {**self._ran}


RunningCode: type[_Profile | _Events] = _Profile if _MONITORING is None else _Events
