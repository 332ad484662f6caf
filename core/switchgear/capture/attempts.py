"""Attempts to capture: what a function changes while it runs on fakes is put back."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from switchgear import torch_private as internals
from switchgear.errors import Unsupported

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
def undone_on(errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """After one of these errors the random streams are what they were.

    What other threads drew from Python's and NumPy's meanwhile is undone, too: whose draws they were cannot be told.
    """
    streams = _random_streams()
    try:
        yield
    except errors:
        for put_back, state in streams:
            put_back(state)
        raise


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
