"""What a jitted function was called with is let go, as in eager."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg


class Box:
    """Holds a tensor and a word."""

    def __init__(self, word: str) -> None:
        self.x = torch.ones(3)
        self.word = word


class Growing(list[Any]):
    """A list that can be referred to weakly."""


def written(box: Any, x: Tensor) -> Tensor:
    box.out = x * box.x
    return x + len(box.word)


def appended(boxes: Any, x: Tensor) -> Tensor:
    boxes.append(x * boxes[0])
    return x * boxes[1]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (lambda number: torch.ones(3), torch.add),
        (lambda number: Box("a" * number), written),
        (lambda number: Growing([torch.ones(3), number]), appended),
        (lambda number: types.SimpleNamespace(x=torch.ones(3), word="a" * number), written),
    ],
)
def test_arguments(make: Callable[[int], Any], function: Callable[..., Tensor]) -> None:
    jitted = sg.jit(function, executors=["torch"])
    alive = []
    for number in range(4):
        argument = make(number)
        held = argument.x if isinstance(argument, types.SimpleNamespace) else argument
        alive.append(weakref.ref(held))
        jitted(argument, torch.ones(3))
        del argument, held
    gc.collect()
    assert [one() for one in alive] == [None] * 4
    assert sg.cache_info(jitted).fallbacks == 0


def test_parameters_that_were_replaced() -> None:
    module = nn.Linear(3, 3)
    jitted = sg.jit(module, executors=["torch"])
    jitted(torch.ones(3))
    weight = weakref.ref(module.weight)
    module.weight = nn.Parameter(torch.ones(3, 3))
    jitted(torch.ones(3))
    gc.collect()
    assert weight() is None


@pytest.mark.filterwarnings("ignore")  # PyTorch warns of eager flex_attention, and of its own modules
def test_flex_attention_outside_afterwards() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    query = torch.randn(1, 1, 16, 8)
    jitted = sg.jit(lambda x: flex.flex_attention(x, x, x) * 2, executors=["torch"])
    found = jitted(query)
    torch.testing.assert_close(found, flex.flex_attention(query, query, query) * 2)
