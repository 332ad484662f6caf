"""Writes as operators: symbols of Switchgear for operations that PyTorch's operators lack, and their grad rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from switchgear_core.errors import Unsupported
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, Symbol

#: The return value of a rule: the outputs, and their pullback.
_Pulled = tuple[torch.Tensor | tuple[torch.Tensor, ...], Callable[..., Any]]


def set_value(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return the value of `new` with the history of `old`: a write that autograd did not see."""
    return new


def _set_value_pullback(old: torch.Tensor, new: torch.Tensor) -> _Pulled:
    return new, lambda grad: (grad, None)


def draw_bernoulli(
    value: torch.Tensor, p: float, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Return the result of `value.bernoulli_(p)`, drawn in its layout; `torch.bernoulli` uses another layout."""
    return torch.empty_like(value).bernoulli_(p, generator=generator)


def _draw_bernoulli_pullback(
    value: torch.Tensor, p: float, *, generator: torch.Generator | None = None
) -> _Pulled:
    return draw_bernoulli(value, p, generator=generator), torch.zeros_like


def restride(value: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Return `value` with other strides: the strides of the written tensor."""
    result = torch.empty_strided(value.shape, tuple(stride), dtype=value.dtype, device=value.device)
    return result.copy_(value)


def _restride_pullback(value: torch.Tensor, stride: Sequence[int]) -> _Pulled:
    return restride(value, stride), lambda grad: grad


def identity(value: torch.Tensor) -> torch.Tensor:
    """Return the value under another name, for a rule that returns a value made elsewhere."""
    return value


def _identity_pullback(value: torch.Tensor) -> _Pulled:
    return value, lambda grad: grad


def new_leaf(value: torch.Tensor) -> torch.Tensor:
    """Return the value of an inner tensor whose history begins here: `requires_grad_()`."""
    return value


def _scatter(
    view: Callable[..., torch.Tensor],
    base: torch.Tensor,
    source: torch.Tensor,
    *args: object,
    **kwargs: object,
) -> torch.Tensor:
    result = base.clone()
    try:
        view(result, *args, **kwargs).copy_(source)
    except Unsupported:  # through a transposed view, recorded by a capture: `irfft`'s backward
        result = base.clone(memory_format=torch.contiguous_format)
        view(result, *args, **kwargs).copy_(source)
        return restride(result, base.stride())
    return result


#: Overloads whose formulas refuse complex numbers, with the equivalent write through a view.
WRITTEN_VIEWS: dict[object, Callable[..., torch.Tensor]] = {
    torch.ops.aten.slice_scatter.default: functools.partial(_scatter, torch.ops.aten.slice.Tensor),
    torch.ops.aten.select_scatter.default: functools.partial(_scatter, torch.ops.aten.select.int),
    torch.ops.aten.diagonal_scatter.default: functools.partial(
        _scatter, torch.ops.aten.diagonal.default
    ),
}


class WritingOperator:
    """Base of functions of symbols for operators that write to `targets` among their arguments.

    In a trace, the operator writes nothing: it returns `(results, values)`, with the new values of its targets. PyTorch
    has no derivative for its results. `reinplace` replaces each call by `lines`.
    """

    def __call__(self, *args: object, **kwargs: object) -> tuple[object, object]:
        """Return the results and the new values; change no argument."""
        raise NotImplementedError

    def versions(self, item: BoundSymbol) -> int:
        """Return by how much a claimed call raises the version of a target."""
        raise NotImplementedError

    def targets(self, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
        """Return the targets among the arguments, nested."""
        raise NotImplementedError

    def lines(
        self, item: BoundSymbol, in_place: Mapping[str, TensorProxy], fresh: Callable[[], str]
    ) -> list[BoundSymbol]:
        """Return lines that write to the targets in `in_place`, by the names of the new values, and else to copies."""
        raise NotImplementedError


IDENTITY = Symbol("switchgear.identity", identity, _identity_pullback)
DRAW_BERNOULLI = Symbol("switchgear.draw_bernoulli", draw_bernoulli, _draw_bernoulli_pullback)
NEW_LEAF = Symbol("switchgear.new_leaf", new_leaf)
RESTRIDE = Symbol("switchgear.restride", restride, _restride_pullback)
SET_VALUE = Symbol("switchgear.set_value", set_value, _set_value_pullback)
