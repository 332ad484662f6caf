"""Isolation: plugins' code is not captured, and process state changed by an import is restored and reported."""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.record.recorder import active, active_recorder

#: Slower imports, in seconds, are reported.
_SLOW = 1.0


@dataclass(slots=True)
class Import:
    """Side effects of an import: `changed` names restored states other than minor ones, `notes` all states."""

    changed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _State:
    """A state of the process, with its getter and setter."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    #: Libraries may change the state casually: the change is undone, and only noted.
    is_minor: bool = False


def _set_environment(before: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(before)


def _set_filters(before: list[object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # resets the caches of shown warnings
    warnings.filters[:] = before  # type: ignore[index]


#: States to be left unchanged by a call.
_MODES = (
    _State("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _State("the grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
)


@contextlib.contextmanager
def restoring(states: Sequence[_State] = _MODES) -> Iterator[list[_State]]:
    """Restore these states at the end; the yielded list then holds the changed states."""
    before, changed = [state.get() for state in states], list[_State]()
    try:
        yield changed
    finally:
        for state, value in zip(states, before, strict=True):
            if state.get() != value:
                state.set(value)
                changed.append(state)


def states() -> Iterator[_State]:
    """Yield the states of the process that foreign code is to leave unchanged."""
    yield from _MODES
    yield _State("PyTorch's random stream", lambda: torch.get_rng_state().tolist(), _set_stream)
    yield _State("Python's random stream", random.getstate, random.setstate)
    yield _State("the number of threads", torch.get_num_threads, torch.set_num_threads)
    yield _State(
        "the mode of deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    )
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        yield _State("NumPy's random stream", _numpy_stream, numpy.random.set_state)
    yield _State("the filters of warnings", lambda: [*warnings.filters], _set_filters, True)
    yield _State("the environment", lambda: dict(os.environ), _set_environment, True)


def _numpy_stream() -> object:
    kind, keys, *rest = sys.modules["numpy"].random.get_state()
    return (kind, tuple(keys), *rest)


def _set_stream(state: list[int]) -> None:
    torch.set_rng_state(torch.tensor(state, dtype=torch.uint8))


@contextlib.contextmanager
def uncaptured() -> Iterator[None]:
    """Return a context outside the capture on the current thread, if any, for code of plugins and its callers."""
    recorder = active_recorder()
    if recorder is None:
        yield
        return
    with recorder.isolation, recorder.paused(), active(None), internals.real_dispatch():
        yield


@contextlib.contextmanager
def isolated() -> Iterator[Import]:
    """Restore state changed inside and capture output; exceptions pass through."""
    report = Import()
    printed, begun = io.StringIO(), time.perf_counter()
    changed: list[_State] = []
    try:
        with (
            restoring([*states()]) as changed,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            yield report
    finally:
        took = time.perf_counter() - begun
        for state in changed:
            report.changed += [state.name] * (not state.is_minor)
            report.notes.append(f"its import changed {state.name}, which was put back")
        if took > _SLOW:
            report.notes.append(f"its import took {took:.1f} s")
        if text := printed.getvalue().strip():
            report.notes.append(f"its import printed: {text}")
