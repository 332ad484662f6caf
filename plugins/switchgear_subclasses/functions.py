"""`torch.autograd.Function` with tensors of subclasses among its arguments: a Function of their inner tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from switchgear_core.record.structure import Structure, flatten
from switchgear_subclasses.shells import Subclass


def of_inner_tensors(function: Any, args: tuple[Any, ...]) -> tuple[Any, list[Any]]:
    """Return a Function that calls another one with tensors of subclasses around its arguments, and these arguments.

    Args:
        function: the Function.
        args: its arguments.
    """
    leaves, structure = flatten(args)

    def forward(ctx: Any, *flat: Any) -> Any:
        return function.forward(_Context(ctx, structure), *structure.unflatten([*flat], Subclass.around))

    def backward(ctx: Any, *grads: Any) -> Any:
        result = function.backward(_Context(ctx, structure), *grads)
        gradients = result if isinstance(result, tuple) else (result,)
        return tuple(
            [part for grad, count in zip(gradients, _counts(structure), strict=False) for part in (grad,) * count]
        )

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(function.__name__, (torch.autograd.Function,), methods), leaves


def _counts(structure: Structure) -> Iterator[int]:
    """Yield the number of leaves of each argument."""
    records = {index: inner.num_leaves for index, _, _, inner in structure.records}
    place = 0
    for spec in structure.spec.children():
        count = sum(records.get(index, 1) for index in range(place, place + spec.num_leaves))
        place += spec.num_leaves
        yield count


class _Context:
    """The `ctx` of the called Function, whose saved tensors may be of subclasses."""

    def __init__(self, ctx: Any, structure: Structure) -> None:
        object.__setattr__(self, "_ctx", ctx)
        object.__setattr__(self, "_structure", structure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._ctx, name, value)

    def save_for_backward(self, *tensors: Any) -> None:
        """Save the inner tensors."""
        leaves, self._ctx.saved_structure = flatten(tensors)
        self._ctx.save_for_backward(*leaves)

    @property
    def saved_tensors(self) -> Any:
        """The tensors, around the saved inner tensors."""
        return self._ctx.saved_structure.unflatten([*self._ctx.saved_tensors], Subclass.around)

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Whether each argument needs a gradient."""
        flags = iter(self._ctx.needs_input_grad)
        return tuple([sum([next(flags) for _ in range(count)]) > 0 for count in _counts(self._structure)])
