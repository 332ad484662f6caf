"""Functions with assertions on tensors, as Python compiles them: pytest rewrites those of its own modules."""

from __future__ import annotations

from torch import Tensor


def asserted(x: Tensor) -> Tensor:
    y = x.exp()
    assert y.isfinite().all(), f"{y} is infinite"
    return y * 2


def raised(x: Tensor) -> Tensor:
    y = x.exp()
    if not y.isfinite().all():
        raise ValueError("infinite", y.shape)
    return y * 2


def raised_otherwise(x: Tensor) -> Tensor:
    y = x.exp()
    if y.isinf().any() or y.isnan().any():
        raise ValueError("infinite" if len(x) else "empty")
    return y * 2


def raised_behind_a_call(x: Tensor) -> Tensor:
    y = x.exp()
    if bool(y.isinf().any()):
        raise ValueError("infinite")
    return y * 2


def raised_in_the_else(x: Tensor) -> Tensor:
    y = x.exp()
    if y.isfinite().all():
        return y * 2
    raise ValueError("infinite")


def raised_behind_other_lines(x: Tensor) -> Tensor:
    y = x.exp()
    if y.isinf().any():
        name = "infinite"
        if y.dim() > 1:
            raise TypeError(f"{name}: {y}")
        raise ValueError(name)
    return y * 2


def raised_now_and_then(x: Tensor) -> Tensor:
    y = x.exp()
    if y.isfinite().all() and y.dim() < 2:
        y = y * 2
        if y.dim() > 1:
            raise ValueError("never")
    return y
