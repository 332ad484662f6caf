"""Results that share memory with each other, with inputs or with constants: views of the same, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.falling_back import falls_back
from tests.in_turn import in_turn

Function = Callable[[Tensor, Tensor], Any]


def told(inputs: list[Tensor], outputs: Any) -> list[tuple[Any, ...]]:
    """What can be asked of results and inputs: their layout, and which share memory, a base or are one object."""
    tensors = [*inputs, *(outputs if isinstance(outputs, (tuple, list)) else [outputs])]
    ids, keys = [*map(id, tensors)], [one.untyped_storage()._cdata for one in tensors]
    return [
        (
            *(ids.index(id(one)), keys.index(key), one.shape, one.stride(), one.storage_offset(), one.dtype),
            *(one.requires_grad, one.is_leaf, one._is_view(), one.tolist()),
            None if one._base is None else ids.index(id(one._base)) if id(one._base) in ids else "none of these",
            one._version if place < len(inputs) else None,
        )
        for place, (one, key) in enumerate(zip(tensors, keys, strict=True))
    ]


def written(x: Tensor, y: Tensor) -> Any:
    y.mul_(2)
    return y, y[0], x * y


def written_by_a_view(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    z[0].add_(1)
    return z, z[1]


COMPILED: dict[str, Function] = {
    "new": lambda x, y: x * 2,
    "an input": lambda x, y: (y, x),
    "an input twice": lambda x, y: (x, x * 2, x),
    "a view of an input": lambda x, y: y[0],
    "two views of an input": lambda x, y: (x[0], x.t()),
    "a view of a view": lambda x, y: (lambda z: (z, z[0]))(x.t()),
    "a detached input": lambda x, y: (x.detach(), x * 2),
    "a result twice": lambda x, y: (lambda z: (z, z))(x * 2),
    "a result and a view of it": lambda x, y: (lambda z: (z, z.view(-1)))(x * 2),
    "a view of a result": lambda x, y: (x * 2).t(),
    "two views of a result": lambda x, y: (lambda z: (z[0], z[1:]))(x * 2),
    "a result and it detached": lambda x, y: (lambda z: (z, z.detach()))(x * 2),
    "a result and its data": lambda x, y: (lambda z: (z, z.data))(x * 2),
    "parts of a result": lambda x, y: (x * 2).unbind(0),
    "an expanded result": lambda x, y: (x * 2).sum(0).expand(2, 3),
    "without gradient": lambda x, y: (y * 2, (y > 0)),
    "a constant": lambda x, y: (x * 2, torch.ones(2)),
    "written input": written,
    "written by a view": written_by_a_view,
    "of no elements": lambda x, y: (x[:0], x * 2),
    "a list": lambda x, y: [x * 2, y],
}


@in_turn(name=COMPILED, needs_grad=[True, False])
def test_results_are_eagers_views_of_eagers_bases(name: str, needs_grad: bool) -> None:
    function = COMPILED[name]
    jitted = sg.jit(function, executors=["torch"], strict=True)

    def call(called: Function) -> Any:
        x = torch.arange(6.0).reshape(2, 3).clone().requires_grad_(needs_grad)
        y = torch.arange(6.0).reshape(2, 3).clone()
        outputs = called(x, y)
        return type(outputs), told([x, y], outputs)

    expected = call(function)
    for _ in range(2):
        assert call(jitted) == expected
    assert sg.cache_info(jitted).misses == 1


REFUSED: dict[str, tuple[Function, str]] = {
    "a view of data beside another": (
        lambda x, y: (lambda z: (z, z.data[0]))(x * 2),
        r"a view of \.data of a tensor, and another of its memory; return detach\(\) of it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_results_that_cannot_be_eagers_are_refused(name: str) -> None:
    function, why = REFUSED[name]
    jitted = sg.jit(function, executors=["torch"])
    x, y = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
    with falls_back(why):
        jitted(x, y)
