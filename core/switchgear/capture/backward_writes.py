"""Backward code that writes in place to what it is handed (saved tensors, grad outputs) is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from switchgear.capture.tracking import Tracker
from switchgear.errors import Unsupported


@contextlib.contextmanager
def backward_writes_refused(
    tracker: Tracker, handed: Sequence[torch.Tensor], what: str
) -> Iterator[None]:
    """Raise `Unsupported` if the backward code that is run inside writes to one of these tensors."""
    before = [tracker.proxy_of(tensor) for tensor in handed]
    yield
    if before != [tracker.proxy_of(tensor) for tensor in handed]:
        raise Unsupported(
            f"{what} writes in place to a tensor that it is handed; write to a clone, or return another"
        )
