"""Writes as operators: symbols of our own for what PyTorch's operators do not say, and their grad rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .registry import GradRule
from .symbol import Symbol

#: What a rule returns: the outputs, and their pullback.
_Pulled = tuple[torch.Tensor | tuple[torch.Tensor, ...], Callable[..., Any]]


def set_value(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """The value of `new` with the history of `old`: a write that autograd did not see."""
    return new


def _set_value_rule(old: torch.Tensor, new: torch.Tensor) -> _Pulled:
    return new, lambda grad: (grad, None)


def _offset(tensor: torch.Tensor) -> int:
    # unseen by a recorder, which lets a function ask inputs alone
    with torch._C.DisableTorchFunction():
        return int(tensor.storage_offset())


def write_strided(
    base: torch.Tensor, source: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> torch.Tensor:
    """`base` with `source` written through a strided view: an in-place call on `base.as_strided(…)`, functional."""
    # in place, so that it is this symbol again where a backward is captured: PyTorch's formula of as_strided_scatter
    # loses the gradient of `base` outside of the view
    start = 0 if offset is None else offset - _offset(base)
    result = restride(base, base.stride())
    result.as_strided(size, stride, start).copy_(source)
    return result


def _write_strided_rule(
    base: torch.Tensor, source: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> _Pulled:
    # not the formula of as_strided_scatter: its gradient of `base` is not that of the in-place call
    shape, strides = base.shape, base.stride()
    start = 0 if offset is None else offset - _offset(base)

    def pullback(grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rest = grad.new_empty_strided(shape, strides).copy_(grad)
        view = rest.as_strided(size, stride, start)
        written = view.clone()
        view.zero_()
        return rest, written

    # PyTorch's own takes nothing else where the base requires grad
    write = torch.as_strided_scatter if base.is_contiguous() else write_strided
    return write(base, source, size, stride, offset), pullback


def draw_bernoulli(value: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """What `value.bernoulli_(p)` leaves in `value`, drawn in its layout; `torch.bernoulli` has one of its own."""
    return torch.empty_like(value).bernoulli_(p, generator=generator)


def _draw_bernoulli_rule(value: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> _Pulled:
    return draw_bernoulli(value, p, generator=generator), torch.zeros_like


def restride(value: torch.Tensor, stride: Sequence[int], offset: int = 0) -> torch.Tensor:
    """`value` with other strides, from another place in its memory: those of what it was written to."""
    if offset:
        reach = sum((size - 1) * step for size, step in zip(value.shape, stride, strict=True))
        result = value.new_empty(max(offset + reach + 1, 0)).as_strided(value.shape, tuple(stride), offset)
    else:
        result = torch.empty_strided(value.shape, tuple(stride), dtype=value.dtype, device=value.device)
    if value.is_complex() and value.is_neg() and not value.is_conj():
        # PyTorch negates a complex zero to one without a sign, a real zero to one with it
        torch.view_as_real(result).copy_(torch.view_as_real(value))
        return result
    return result.copy_(value)


def _restride_rule(value: torch.Tensor, *layout: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    return restride(value, *layout), lambda grad: grad


def written_view(base: torch.Tensor, view: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`base`, and `view` of it, as a call reads them that writes to the view: all of the view's elements."""
    return base, view


def _written_view_rule(base: torch.Tensor, view: torch.Tensor) -> _Pulled:
    # as autograd's CopySlices: the gradient of `base`, in its layout, with that of `view` in its place, never a sum
    outputs, parts = (base, view), base.is_complex() and not view.is_complex()
    pairs = view.is_complex() and not base.is_complex()
    conjugated, negated = view.is_conj() != base.is_conj(), view.is_neg() != base.is_neg()
    base = torch.view_as_real(base.conj() if base.is_conj() else base) if parts else base
    view = torch.view_as_real(view.conj() if view.is_conj() else view) if pairs else view
    shape, stride = base.shape, base.stride()
    layout = view.shape, view.stride(), _offset(view) - _offset(base)

    def pullback(grad: torch.Tensor, written: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = torch.view_as_real(grad.resolve_conj()) if parts else grad
        whole = grad.new_empty_strided(shape, stride).copy_(grad)
        place = whole.as_strided(*layout)
        place = torch.view_as_complex(place) if pairs else place
        place = place.conj() if conjugated else place
        (torch._neg_view(place) if negated else place).copy_(written)
        return torch.view_as_complex(whole) if parts else whole, None

    return outputs, pullback


def in_place(value: torch.Tensor, overload: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """What an in-place call, of an overload of `torch.ops.aten`, leaves in `value`."""
    name, _, which = overload.partition(".")
    result: torch.Tensor = getattr(getattr(torch.ops.aten, name), which)(value.clone(), *args, **kwargs)
    return result


def identity(value: torch.Tensor) -> torch.Tensor:
    """The value under another name: what a rule returns that it did not make."""
    return value


def _identity_rule(value: torch.Tensor) -> _Pulled:
    return value, lambda grad: grad


def _written(
    view: Callable[..., torch.Tensor], base: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    base = base.clone()
    view(base, *args, **kwargs).copy_(source)
    return base


#: Overloads whose formulas refuse complex numbers, each as the write through a view that it stands for.
WRITTEN_VIEWS: dict[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten.slice_scatter.default: functools.partial(_written, torch.ops.aten.slice.Tensor),
    torch.ops.aten.select_scatter.default: functools.partial(_written, torch.ops.aten.select.int),
    torch.ops.aten.diagonal_scatter.default: functools.partial(_written, torch.ops.aten.diagonal.default),
}

IDENTITY = Symbol("switchgear.identity", identity)
IN_PLACE = Symbol("switchgear.in_place", in_place)
DRAW_BERNOULLI = Symbol("switchgear.draw_bernoulli", draw_bernoulli)
#: What an in-place call leaves in an input when it changes sizes or strides of a view of it.
NEW_VERSION = Symbol("torch.autograd.graph.increment_version", torch.autograd.graph.increment_version)
RESTRIDE = Symbol("switchgear.restride", restride)
SET_VALUE = Symbol("switchgear.set_value", set_value)
WRITTEN_VIEW = Symbol("switchgear.written_view", written_view)
WRITE_STRIDED = Symbol("switchgear.write_strided", write_strided)

_RULES: dict[Symbol, Callable[..., Any]] = {
    SET_VALUE: _set_value_rule,
    WRITE_STRIDED: _write_strided_rule,
    WRITTEN_VIEW: _written_view_rule,
    IDENTITY: _identity_rule,
    RESTRIDE: _restride_rule,
    DRAW_BERNOULLI: _draw_bernoulli_rule,
}
#: The grad rules of these symbols, by symbol.
RULES = {symbol: GradRule("switchgear", symbol.name, "pullback", rule) for symbol, rule in _RULES.items()}
