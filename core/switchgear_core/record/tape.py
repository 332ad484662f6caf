"""The tape: the lines recorded so far, grouped by open calls, and the current user line."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator

import torch

from switchgear_core.ir.symbol import BoundSymbol, Source, Symbol
from switchgear_core.ir.trace import Names
from switchgear_core.patches import replaced
from switchgear_core.record.call import Call
from switchgear_core.record.user_code import is_own_file, user_frame


class Tape:
    """The recorded lines. `module_path` returns the path of the module being called."""

    def __init__(self, names: Names, module_path: Callable[[], str]) -> None:
        self.names = names
        self.constants: dict[str, torch.Tensor] = {}
        #: The open calls, the innermost last; the first holds lines recorded outside any call.
        self.frames = [Call(None)]
        #: Tags of every line, and the source of every line, if not the user's line.
        self.tags: frozenset[str] = frozenset()
        self.fixed_source: Source | None = None
        #: Additional tags of an operator, by `(overload, args, kwargs, result)`.
        self.tags_of: Callable[..., frozenset[str]] | None = None
        #: The dispatch state of PyTorch for recorded calls.
        self.dispatch_state: tuple[object, object] = (None, None)
        self._module_path = module_path
        #: The names of the user's open `record_function` blocks.
        self.ranges: tuple[str, ...] = ()
        #: The code that calls the captured function: the user's relevant calls lie below it.
        self.root: types.CodeType | None = None
        #: Calls and their sources, by identity of code; the calls keep the code alive.
        self._call_chains: dict[object, tuple[object, tuple[Source, ...]]] = {}
        #: Whether calls pass unrecorded.
        self.is_paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context in which calls pass unrecorded."""
        outer, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = outer

    @property
    def frame(self) -> Call:
        """The innermost open call."""
        return self.frames[-1]

    @property
    def lines(self) -> list[BoundSymbol]:
        """The lines recorded in the innermost open call."""
        return self.frames[-1].lines

    @contextlib.contextmanager
    def framed(self, call: Call) -> Iterator[None]:
        """Return a context recording lines as the parts of a call."""
        self.frames.append(call)
        try:
            yield
        finally:
            self.frames.pop()

    def tagged(self, tag: str) -> contextlib.AbstractContextManager[None]:
        """Return a context tagging recorded lines."""
        return replaced(self, "tags", self.tags | {tag})

    def take(self) -> tuple[BoundSymbol, ...]:
        """Return the lines recorded outside any open call since the last call of `take`."""
        lines, self.frames[0].lines = tuple(self.frames[0].lines), []
        return lines

    def record(self, symbol: Symbol, args: tuple[object, ...], output: object, *tags: str) -> None:
        """Record a call unseen by the modes."""
        source, tagged = self.source(), self.tags.union(tags)
        self.lines.append(BoundSymbol(symbol, args, {}, output, source=source, tags=tagged))

    def source(self) -> Source | None:
        """Return the current source in the user's code."""
        if self.fixed_source is not None:
            return self.fixed_source
        frame, _ = user_frame()
        if frame is None:
            return None
        code, module = frame.f_code, self._module_path()
        callers, ranges = self._callers(frame), self.ranges
        return Source(code.co_filename, frame.f_lineno, module, code.co_name, callers, ranges)

    def _callers(self, callee: types.FrameType) -> tuple[Source, ...]:
        """Return the user's calls above a frame, up to the call of the captured function."""
        calls: list[tuple[types.CodeType, int]] = []
        frame = None if callee.f_code is self.root else callee.f_back
        while frame is not None and frame.f_code is not self.root:
            if not is_own_file(frame.f_code.co_filename):
                calls.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        # hashing code by content is slow
        key = tuple([(id(code), place) for code, place in calls])
        if key not in self._call_chains:
            self._call_chains[key] = calls, tuple([_source(*call) for call in calls])
        return self._call_chains[key][1]

    def here(self) -> str:
        """Return the user's line, for messages."""
        source = self.source()
        return f"{source.file}:{source.line}" if source else "the jitted function"


def _source(code: types.CodeType, place: int) -> Source:
    """Return the source line of an instruction."""
    lines = (line for begin, end, line in code.co_lines() if begin <= place < end)
    return Source(code.co_filename, next(lines, None) or 0, function=code.co_name)
