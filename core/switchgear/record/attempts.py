"""Attempts to capture: what a function changes while it runs on fakes is put back."""

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

from switchgear import torch_private as internals
from switchgear.errors import Unsupported
from switchgear.patches import Change, changes, put_back
from switchgear.record.user_code import is_own_file

P = ParamSpec("P")
R = TypeVar("R")

#: A capture puts a stand-in where `torch` has it.
_DEFAULT_STREAM = torch.default_generator
#: Global modes that a function may change for a while: what they are called, how to ask, and how to set them.
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
    """Refuse a function that leaves a global mode other than it found it."""
    before = [ask() for _, ask, _ in _MODES]
    changed: list[str] = []
    try:
        yield
        changed = [
            name for (name, ask, _), value in zip(_MODES, before, strict=True) if ask() != value
        ]
    finally:
        for (_, ask, put), value in zip(_MODES, before, strict=True):
            if ask() != value:
                put(value)
    if changed:
        raise Unsupported(
            f"the function leaves {changed[0]} changed; change it back at its end, or change it outside"
        )


@contextlib.contextmanager
def draws_undone() -> Iterator[None]:
    """After an error the random streams are what they were.

    What other threads drew from Python's and NumPy's meanwhile is undone, too: whose draws they were cannot be told.
    """
    streams = _random_streams()
    try:
        yield
    except BaseException:
        for put_back, state in streams:
            put_back(state)
        raise


def _cleared(error: BaseException, before: Collection[Change]) -> BaseException:
    """Undo all changes but those of `before`; the error to raise: an interrupt, if that led to `error`.

    The frames that an error came through let go of context managers, which would else end at any time later. The user's
    own keep their variables, but for an interrupt: there these are stand-ins for tensors.
    """
    chain = [error]
    while chain[-1].__context__ is not None and chain[-1].__context__ not in chain:
        chain.append(chain[-1].__context__)
    interrupt = next((one for one in chain if isinstance(one, KeyboardInterrupt)), None)
    for one in chain:
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if interrupt is not None or is_own_file(frame.f_code.co_filename):
                with contextlib.suppress(RuntimeError):  # it runs
                    frame.clear()
    if interrupt is not None and len(changes()) > len(before):
        gc.collect()  # context managers in circles would else end later, and set modes that are put back here
    put_back(before)
    return interrupt or error


def undoing(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: whatever ends it at any instruction, the changes that it has made are undone.

    Twice: an interrupt may arrive while they are undone.
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
    """Decorate a function that compiles: `undoing`, and modes, random streams and warnings are as before."""

    @undoing
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        asked = *[(ask, put) for _, ask, put in _MODES], *internals.THREAD_STATES
        modes = [(ask(), ask, put) for ask, put in asked]
        filters = warnings.filters, [*warnings.filters]
        change = Change(_put_states, modes, _random_streams(), filters)
        result = function(*args, **kwargs)
        change.forget()
        return result

    return run


def _put_states(
    modes: Iterable[tuple[Any, Callable[[], Any], Callable[[Any], object]]],
    streams: Iterable[tuple[Callable[[object], object], object]],
    filters: tuple[Any, list[Any]],
) -> None:
    for state, ask, put in modes:
        if ask() != state:
            put(state)
    for put_stream, state in streams:
        put_stream(state)
    warnings.filters, warnings.filters[:] = filters  # type: ignore[index]


def _random_streams() -> list[tuple[Callable[[object], object], object]]:
    """The state of the process-wide random streams of the CPU, each with what puts it back.

    PyTorch's is left alone beside other threads, which may seed it: of stand-ins for tensors nothing is drawn.
    """
    streams: list[tuple[Callable[[Any], object], Any]] = [(random.setstate, random.getstate())]
    if threading.active_count() == 1:
        streams.append((_DEFAULT_STREAM.set_state, _DEFAULT_STREAM.get_state()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        streams.append((numpy.random.set_state, numpy.random.get_state()))
    return streams
