"""Comparison of results and derivatives with those of PyTorch."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch

from switchgear_core.errors import FallbackWarning
from switchgear_core.nearness import Named, dense, differences, widened
from switchgear_core.nesting import tensors_in, twin
from switchgear_tools.testing.samples import Sample

#: Results, gradients by the arguments, and second derivatives by the arguments, as far as there are some.
Derivatives: TypeAlias = list[Sequence[torch.Tensor | None]]
_ORDERS = ("result", "gradient of argument", "second derivative by argument")


def derivatives(
    sample: Sample, function: Callable[..., object], slots: Sequence[int], orders: int
) -> Derivatives:
    """Return the result of a function for copies of a sample's arguments; tensors at `slots` require grad."""
    places = itertools.count()
    copied = sample.mapped(
        lambda tensor: twin(tensor).requires_grad_() if next(places) in slots else twin(tensor)
    )
    leaves = [copied.tensors()[place] for place in slots]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        ends: Sequence[torch.Tensor | None] = [*tensors_in(function(*copied.args, **copied.kwargs))]
    by_order: Derivatives = [ends]
    for order in range(1, orders + 1):
        through = [dense(tensor) for tensor in ends if tensor is not None and tensor.requires_grad]
        if not through or not leaves:
            break
        ends = torch.autograd.grad(
            through,
            leaves,
            [*map(_weights, through)],
            create_graph=order < orders,
            allow_unused=True,
        )
        by_order.append(ends)
    return [[it if it is None else it.detach() for it in tensors] for tensors in by_order]


def unlike(
    results: Derivatives, expected: Derivatives, slots: Sequence[int], sample: Sample
) -> Iterator[str]:
    """Yield the differences between the derivatives of a sample and those of PyTorch."""

    def labelled(tensors: Derivatives) -> Named:
        padded = [*tensors, *[[None] * len(slots)] * (len(expected) - len(tensors))]
        return {
            f"{_ORDERS[order]} {slots[place] if order else place}": tensor
            for order, row in enumerate(padded)
            for place, tensor in enumerate(row)
        }

    def exactly() -> Named:
        wide = sample.mapped(widened)
        return labelled(derivatives(wide, sample.function, slots, len(expected) - 1))

    yield from differences(labelled(results), labelled(expected), exactly, sample.tensors())


def _weights(end: torch.Tensor) -> torch.Tensor:
    """Return another weight for each element, without which a derivative of several elements could cancel."""
    ramp = torch.arange(1, end.numel() + 1, dtype=torch.float64) * 0.6180339887498949 % 1.0 + 0.5
    return ramp.reshape(end.shape).to(end)
