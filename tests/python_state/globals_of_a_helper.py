"""A module of the user's with globals of its own, which cases change."""

from __future__ import annotations

from torch import Tensor

FACTOR = 1.0


def scaled(x: Tensor) -> Tensor:
    """Scale by this module's global."""
    return x * FACTOR


def inner(x: Tensor) -> Tensor:
    """A function that cases patch."""
    return x + 1


def outer(x: Tensor) -> Tensor:
    """Call what this module's global names."""
    return inner(x) * 2
