"""Bytes that a step holds between forward and backward, and at its peak, by the account of PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.profiler import record_function
from torch.profiler import ProfilerActivity, profile

_FORWARD_DONE = "forward done"


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that a step still holds when its forward is done, and the most bytes at once."""

    name: str
    saved: int
    peak: int


def measure(name: str, forward: Callable[[], torch.Tensor]) -> Held:
    """Run a forward and its backward; return the bytes that PyTorch's allocator gave out, by its own account.

    The account counts every storage once, whoever holds the storage: saved tensors, the states of generators, the loss.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        loss = forward()
        with record_function(_FORWARD_DONE):
            pass
        loss.backward()
    held = saved = peak = 0
    inner: Any = profiler.profiler
    for event in sorted(inner.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
        elif event.name() == _FORWARD_DONE:
            saved = held
    return Held(name, saved, peak)
