"""Capture attempts: changes made by a function during its run on fakes are undone."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.patches import Change, Lock, changes, put_back
from switchgear_core.record.user_code import is_own_file

P = ParamSpec("P")
R = TypeVar("R")

#: Held while capturing and differentiating: some patches and flags are process-wide.
CAPTURE_LOCK = Lock()
#: The CPU generator; a capture replaces `torch.default_generator` by a stand-in.
_DEFAULT_STREAM = torch.default_generator
#: Global modes, temporarily changeable by a function: name, getter and setter.
_MODES: tuple[tuple[str, Callable[[], Any], Callable[[Any], object]], ...] = (
    ("grad mode", torch.is_grad_enabled, internals.set_grad_enabled),
    ("autocast", internals.autocast_state, internals.set_autocast_state),
    ("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("the default device", internals.global_default_device, torch.set_default_device),
    (
        "the float32 matmul precision",
        internals.float32_precision,
        internals.set_float32_precision,
    ),
    ("the attention backends", internals.attention_backends, internals.set_attention_backends),
    ("deterministic mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
)


@contextlib.contextmanager
def modes_kept() -> Iterator[None]:
    """Refuse a function with a lasting change of a global mode."""
    before = [ask() for _, ask, _ in _MODES]
    changed: list[str] = []
    try:
        yield
        changed = [
            name for (name, ask, _), value in zip(_MODES, before, strict=True) if ask() != value
        ]
    finally:
        for (_, ask, setter), value in zip(_MODES, before, strict=True):
            if ask() != value:
                setter(value)
    if changed:
        raise Unsupported(
            f"the function leaves {changed[0]} changed; change it back at its end, or change it outside"
        )


@contextlib.contextmanager
def draws_undone() -> Iterator[None]:
    """Restore the random streams after an error.

    Draws by other threads from the streams of Python and NumPy are undone too: their origin is unknown.
    """
    streams = _random_streams()
    try:
        yield
    except BaseException:
        for put_back, state in streams:
            put_back(state)
        raise


def _cleared(error: BaseException, before: Collection[Change]) -> BaseException:
    """Undo all changes except `before`; return the error to raise: an interrupt, if `error` was raised because of one.

    Frames of the traceback release their context managers, which would otherwise end at an arbitrary later time. Frames
    of the user keep their variables, except after an interrupt: the variables are stand-ins for tensors.
    """
    chain = [error]
    while chain[-1].__context__ is not None and chain[-1].__context__ not in chain:
        chain.append(chain[-1].__context__)
    interrupt = next((link for link in chain if isinstance(link, KeyboardInterrupt)), None)
    for link in chain:
        for frame, _ in traceback.walk_tb(link.__traceback__):
            if interrupt is not None or is_own_file(frame.f_code.co_filename):
                with contextlib.suppress(RuntimeError):  # the frame is running
                    frame.clear()
    if interrupt is not None and len(changes()) > len(before):
        gc.collect()  # context managers in cycles would exit later, and set modes restored here
    put_back(before)
    return interrupt or error


def undoing(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its changes are undone after an exception at any instruction.

    Undone twice: an interrupt may arrive during the undoing.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        before = [*changes()]
        try:
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                raise _cleared(error, before)  # noqa: B904 - it is the same, or was first
        except BaseException as error:
            raise _cleared(error, before)  # noqa: B904

    return run


def leaves_nothing(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a compiling function: as `undoing`, and restore modes, random streams and warnings on failure."""

    @undoing
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        states = *[(ask, setter) for _, ask, setter in _MODES], *internals.THREAD_STATES
        modes = [(ask(), ask, setter) for ask, setter in states]
        filters = warnings.filters, [*warnings.filters]
        change = Change(_put_states, modes, _random_streams(), filters)
        result = function(*args, **kwargs)
        change.forget()
        return result

    return run


def compiles(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function for capture or compilation: one thread runs it, and a failure leaves no state behind.

    The garbage collector is off, because it would scan the many new objects repeatedly.
    """

    @leaves_nothing
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with CAPTURE_LOCK, _no_garbage(), internals.saved_tensors_hooks_off():
            return function(*args, **kwargs)

    return run


@contextlib.contextmanager
def _no_garbage() -> Iterator[None]:
    if not gc.isenabled():
        yield
        return
    change = Change(gc.enable)
    try:
        gc.disable()
        yield
    finally:
        change.undo()


def _put_states(
    modes: Iterable[tuple[Any, Callable[[], Any], Callable[[Any], object]]],
    streams: Iterable[tuple[Callable[[object], object], object]],
    filters: tuple[Any, list[Any]],
) -> None:
    for state, ask, setter in modes:
        if ask() != state:
            setter(state)
    for put_stream, state in streams:
        put_stream(state)
    warnings.filters, warnings.filters[:] = filters  # type: ignore[index]


def _random_streams() -> list[tuple[Callable[[object], object], object]]:
    """Return the states of the process-wide CPU random streams, each with its setter.

    PyTorch's stream is omitted while other threads exist, which may seed it: stand-ins for tensors draw nothing.
    """
    streams: list[tuple[Callable[[Any], object], Any]] = [(random.setstate, random.getstate())]
    if threading.active_count() == 1:
        streams.append((_DEFAULT_STREAM.set_state, _DEFAULT_STREAM.get_state()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        streams.append((numpy.random.set_state, numpy.random.get_state()))
    return streams
