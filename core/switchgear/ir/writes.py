"""Writes as operators: symbols of our own for what PyTorch's operators do not say, and their grad rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from switchgear.errors import Unsupported
from switchgear.ir.symbol import Symbol

#: What a rule returns: the outputs, and their pullback.
_Pulled = tuple[torch.Tensor | tuple[torch.Tensor, ...], Callable[..., Any]]


def set_value(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The value of `new` with the history of `old`: a write that autograd did not see."""
    return new


def _set_value_pullback(old: torch.Tensor, new: torch.Tensor) -> _Pulled:
    return new, lambda grad: (grad, None)


def draw_bernoulli(
    value: torch.Tensor, p: float, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """What `value.bernoulli_(p)` leaves in `value`, drawn in its layout; `torch.bernoulli` has one of its own."""
    return torch.empty_like(value).bernoulli_(p, generator=generator)


def _draw_bernoulli_pullback(
    value: torch.Tensor, p: float, *, generator: torch.Generator | None = None
) -> _Pulled:
    return draw_bernoulli(value, p, generator=generator), torch.zeros_like


def restride(value: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """`value` with other strides: those of what it was written to."""
    result = torch.empty_strided(value.shape, tuple(stride), dtype=value.dtype, device=value.device)
    return result.copy_(value)


def _restride_pullback(value: torch.Tensor, stride: Sequence[int]) -> _Pulled:
    return restride(value, stride), lambda grad: grad


def identity(value: torch.Tensor) -> torch.Tensor:
    """The value under another name: what a rule returns that it did not make."""
    return value


def _identity_pullback(value: torch.Tensor) -> _Pulled:
    return value, lambda grad: grad


def new_leaf(value: torch.Tensor) -> torch.Tensor:
    """The value of a tensor made inside whose history begins here: `requires_grad_()`."""
    return value


def _written(
    view: Callable[..., torch.Tensor],
    base: torch.Tensor,
    source: torch.Tensor,
    *args: object,
    **kwargs: object,
) -> torch.Tensor:
    written = base.clone()
    try:
        view(written, *args, **kwargs).copy_(source)
    except Unsupported:  # through a transposed view, where a capture records it: `irfft`'s backward
        written = base.clone(memory_format=torch.contiguous_format)
        view(written, *args, **kwargs).copy_(source)
        return restride(written, base.stride())
    return written


#: Overloads whose formulas refuse complex numbers, each as the write through a view that it stands for.
WRITTEN_VIEWS: dict[object, Callable[..., torch.Tensor]] = {
    torch.ops.aten.slice_scatter.default: functools.partial(_written, torch.ops.aten.slice.Tensor),
    torch.ops.aten.select_scatter.default: functools.partial(_written, torch.ops.aten.select.int),
    torch.ops.aten.diagonal_scatter.default: functools.partial(
        _written, torch.ops.aten.diagonal.default
    ),
}

IDENTITY = Symbol("switchgear.identity", identity, _identity_pullback)
DRAW_BERNOULLI = Symbol("switchgear.draw_bernoulli", draw_bernoulli, _draw_bernoulli_pullback)
NEW_LEAF = Symbol("switchgear.new_leaf", new_leaf)
RESTRIDE = Symbol("switchgear.restride", restride, _restride_pullback)
SET_VALUE = Symbol("switchgear.set_value", set_value, _set_value_pullback)
