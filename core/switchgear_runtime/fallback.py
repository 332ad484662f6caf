"""Falling back: a call that capture refuses runs the original function, split or in eager, and says so once."""

from __future__ import annotations

import functools
import os
import re
import sys
import traceback
import types
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import torch

from switchgear_core import own
from switchgear_core import torch_private as internals
from switchgear_core.errors import (
    CaptureError,
    ExecutorFailed,
    FallbackWarning,
    InvalidTrace,
    NotDifferentiable,
    RuleError,
    SwitchgearError,
    Unsupported,
)
from switchgear_core.record.user_code import is_installed, is_own_file, is_standard, user_frame
from switchgear_core.registry.hookspecs import DISTRIBUTIONS
from switchgear_core.showing import warning_text
from switchgear_runtime.modes import same_modes


@dataclass(slots=True, eq=False)
class Fallback:
    """Calls not captured for a common reason: the number of calls, of split calls, and of kinds tried."""

    error: CaptureError
    #: The refused line, and the calling line of the user, if in files of the user or of a library.
    place: str = ""
    calls: int = 0
    splits: int = 0
    kinds: int = 0
    #: The number of calls before another capture, and the limit on captures: the obstacle, such as a flag set in the
    #: first call, may be gone.
    patience: int = 4
    tries: int = 3
    #: Whether values change from call to call, and there are entries for many values.
    is_crowded: bool = False
    #: Why calls are not split although they could be.
    doubt: str = ""

    def crowded(self) -> Fallback:
        """Mark as crowded, and return this fallback; changes may stop, as after a warm-up, however late."""
        if not self.is_crowded:
            self.is_crowded, self.patience, self.tries = True, 64, sys.maxsize
        return self

    @property
    def rests(self) -> bool:
        """Whether the current call is not captured again."""
        return self.calls < self.patience or self.tries <= 0

    def is_due(self) -> bool:
        """Check whether the current call is to be captured again, and count the attempt."""
        is_due = not self.rests
        if is_due:
            self.patience *= 4
            self.tries -= 1
        return is_due

    def __str__(self) -> str:
        reason = f"{type(self.error).__name__}: {self.error}"
        return f"{reason}; not split, because {self.doubt}" if self.doubt else reason


def fault(error: Exception) -> Unsupported:
    """Return the refusal for a call in which Switchgear itself failed.

    Raises:
        Exception: `error` itself where it is external: of a plugin or an option, a warning made an error, or lack of
            memory.
    """
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    frames = [frame for frame, _ in traceback.walk_tb(root.__traceback__)]
    if isinstance(root, (Warning, MemoryError, torch.OutOfMemoryError)):
        raise error
    if isinstance(error, (RuleError, ExecutorFailed)):
        owners = [name for name in map(_package, frames) if name not in _CALLED | own.PACKAGES]
        is_ours = error is not root and not _own_packages().isdisjoint(owners[:1])
    elif isinstance(error, SwitchgearError):
        is_ours = isinstance(error, (InvalidTrace, NotDifferentiable))
    else:  # features name themselves in a note
        is_ours = not hasattr(error, "__notes__") or _package(frames[-1]) in own.PACKAGES
    if not is_ours:
        raise error
    if isinstance(error, NotDifferentiable):  # a missing rule, perhaps of Switchgear itself
        return Unsupported(f"NotDifferentiable: {error}", splits=False)
    if fakeless := re.search(r"no fake impl registered for <CustomOpDef\((\S+)\)>", str(root)):
        name = fakeless[1]
        remedy = f"@{name.rpartition('::')[2]}.register_fake on a function of its arguments"
        refusal = Unsupported(f"{name} has no fake implementation; add one: {remedy}", splits=False)
        return refusal.with_traceback(error.__traceback__)
    where = f" ({frames[-1].f_code.co_filename}:{frames[-1].f_lineno})" if frames else ""
    cause = (
        error if isinstance(error, SwitchgearError) else root
    )  # the error that names the user's line
    summary = f"{type(cause).__name__}: {cause}".partition("\n")[0]
    refusal = Unsupported(
        f"Switchgear itself fails, with {summary}{where}, and eager does not; please report this",
        splits=False,
    )
    return refusal.with_traceback(error.__traceback__)


_ATOMS = frozenset({int, float, bool, str, type(None)})
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
#: Larger containers are compared by identity.
_WIDE = 64
#: Packages that call plugins, or are called by Switchgear.
_CALLED = {"torch", "pluggy", "numpy"} | sys.stdlib_module_names


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


@functools.cache
def _own_packages() -> frozenset[str]:
    """Return the packages of the executors that ship with Switchgear."""
    entries = entry_points(group="switchgear")
    return frozenset(
        e.module for e in entries if e.dist is not None and e.dist.name in DISTRIBUTIONS
    )


class LastFallback:
    """A call that fell back, with its cheaply compared properties: layouts, numbers, text, identities.

    Calls with equal properties may differ otherwise; falling back is right in any case.
    """

    def __init__(
        self,
        fallback: Fallback,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        module: torch.nn.Module | None,
    ) -> None:
        self.fallback = fallback
        self._outline = _outline((args, kwargs))
        self._state = _state(module)
        scope: dict[str, Any] = {}
        try:
            self._same_modes = eval(f"lambda: {same_modes(scope)}", scope)
        except Unsupported:  # under a foreign mode
            self._same_modes = bool

    def is_for(
        self, args: tuple[object, ...], kwargs: dict[str, object], module: torch.nn.Module | None
    ) -> bool:
        """Check whether a call is similar, and not to be captured again."""
        return (
            self.fallback.rests
            and _state(module) == self._state
            and _outline((args, kwargs)) == self._outline
            and self._same_modes()
        )


def _state(module: torch.nn.Module | None) -> tuple[bool, bool]:
    return module is None or module.training, internals.functorch_active()


def _outline(value: Any, depth: int = 5) -> object:
    kind = type(value)
    if kind in _TENSORS and not value.is_nested:
        return value.shape, value.dtype, value.requires_grad
    if kind in _ATOMS:
        return kind, value
    if kind in (tuple, list, dict) and depth and len(value) <= _WIDE:
        items = value.items() if kind is dict else value
        return kind, *[_outline(item, depth - 1) for item in items]
    return kind, id(value)


class Fallbacks:
    """The reasons why calls of a function run in eager mode, by key and by reason.

    A reason met in more than `limit` kinds of calls stops attempts for other kinds.
    """

    def __init__(self, name: str, size: int, limit: int) -> None:
        self.reasons: dict[str, Fallback] = {}
        self._name = name
        self._size = size
        self._limit = limit
        self._by_key: OrderedDict[object, Fallback] = OrderedDict()
        #: Why no other kind of call is tried.
        self.always: Fallback | None = None

    def known(self, key: object) -> Fallback | None:
        """Return why calls of a key are not compiled, as far as known."""
        return self._by_key.get(key, self.always)

    def add(self, error: CaptureError, key: object = None) -> Fallback:
        """Record a refusal, for all calls of a key if given."""
        place = _place(error)
        error.__cause__ = error.__context__ = None  # their tracebacks keep the call's objects alive
        fallback = self.reasons.setdefault(str(error), Fallback(error.with_traceback(None), place))
        if key is None:
            return fallback
        fallback.kinds += 1
        if fallback.kinds > self._limit:
            self.always = fallback
        self._by_key[key] = fallback
        if len(self._by_key) > self._size:
            self._by_key.popitem(last=False)
        return fallback

    def count(self, fallback: Fallback, split: bool, quiet: bool, doubt: str = "") -> None:
        """Count a call that falls back; the first for its reason warns, unless `quiet`.

        The first call no longer split warns too, with the `doubt`.
        """
        fallback.calls += 1
        fallback.splits += split
        is_news = fallback.calls == 1 or doubt != fallback.doubt
        fallback.doubt = doubt
        if is_news and not quiet:
            how = (
                "is split by TorchDynamo, which compiles the parts it can"
                if split
                else "runs in eager, not compiled"
            )
            text = str(fallback).removeprefix(f"{type(fallback.error).__name__}: ")
            happened, semicolon, remedy = text.rpartition("; ")
            if fallback.place.endswith(_IN_LIBRARY):
                semicolon = ""  # the remedy is for the author of the library
            text = f"{happened or text}{fallback.place}" + (semicolon and f"; {remedy}")
            name = self._name.rpartition("<locals>.")[2]
            warning = FallbackWarning(warning_text(f"{name} {how}: {text}", _MORE), str(fallback))
            warnings.warn(warning, stacklevel=user_frame()[1])


_IN_LIBRARY = "; this is library code: jit a part of the model that does without it"
_MORE = "More: sg.explain(f).fallbacks(). To stop here instead: sg.jit(f, fallback='error')."


def _place(error: CaptureError) -> str:
    """Return the place of a refusal, unless in the message, and for a library's line the user's line."""
    frames = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    lines = [pair for pair in frames if not is_own_file(pair[0]) and not is_standard(pair[0])]
    if not lines:
        return ""
    file, line = lines[-1]
    place = "" if f"{os.path.basename(file)}:" in str(error) else f", in {file}:{line}"
    if is_installed(file):
        callers = [pair for pair in lines if not is_installed(pair[0])]
        caller = f", called in {callers[-1][0]}:{callers[-1][1]}" if callers else ""
        place += f"{caller}{_IN_LIBRARY}"
    return place
