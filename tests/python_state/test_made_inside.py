"""What a function makes, keeps and asks for, as programs do that serve models: eager's answer, compiled or not."""

from __future__ import annotations

import functools
import os
import random
from collections import OrderedDict
from collections.abc import Callable
from random import random as _chance
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from switchgear_core import torch_private as internals
from tests.falling_back import falls_back

X = torch.ones(2)


class Computed(dict[str, Any]):
    """Its items are its attributes."""

    __getattr__ = dict.__getitem__


class Own(dict[str, Any]):
    """Its items are its attributes, for it is its `__dict__`."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


@pytest.mark.parametrize("kind", [Computed, Own])
def test_a_dict_by_attributes(kind: Any) -> None:
    def function(holder: SimpleNamespace, x: Tensor) -> Tensor:
        holder.stats = kind(mean=x.mean())
        return x * 2

    jitted, holder = sg.jit(function, executors=["torch"], strict=True), SimpleNamespace()
    for x in (X, X * 3):
        jitted(holder, x)
        assert type(holder.stats) is kind
        assert torch.equal(holder.stats.mean, x.mean())
        holder.stats.count = 1
        assert "count" not in holder.stats or kind is Own


class Window(nn.Module):
    """Keeps where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.end = slice(0, 0), 0

    def forward(self, x: Tensor) -> Tensor:
        self.last = slice(self.end, self.end + x.shape[0])
        self.end += x.shape[0]
        return x * 2


def test_a_slice_of_sizes_that_vary() -> None:
    window, end = Window(), 0
    jitted = sg.jit(window, executors=["torch"], strict=True)
    for size in (2, 3, 4, 5):
        jitted(torch.ones(size))
        assert window.last == slice(end, end := end + size)
        assert type(window.last.stop) is int


class Slotted:
    """Computes what it keeps once."""

    __slots__ = ("kept",)

    def __call__(self, x: Tensor) -> Tensor:
        if not hasattr(self, "kept"):
            self.kept = x * 2
        return x + self.kept


def test_a_slot_that_is_set_since() -> None:
    plain, jitted = Slotted(), sg.jit(Slotted(), executors=["torch"])
    for factor in (1, 10, 100):
        assert torch.equal(jitted(X * factor), plain(X * factor))


class Token(str):
    """A text with attributes."""

    vector: Tensor


class Pair(tuple[Any, ...]):
    """A tuple with attributes."""

    tag: str


def lengths(holder: Any, x: Tensor) -> Tensor:
    result = x * 2
    result.lengths = [1, 2]  # type: ignore[attr-defined]
    return result


def token(holder: Any, x: Tensor) -> Tensor:
    holder.made = Token("cat")
    holder.made.vector = x * 2
    return x


def pair(holder: Any, x: Tensor) -> Tensor:
    holder.made = Pair((x * 2, 1))
    holder.made.tag = "t"
    return x


def by_tensor(holder: Any, x: Tensor) -> Tensor:
    holder.made = {x * 2: "x"}
    return x


def by_id(holder: Any, x: Tensor) -> Tensor:
    holder.cache[id(x)] = x.sum()
    return x


def scored(holder: Any, x: Tensor) -> Tensor:
    def score() -> int:
        return 1

    score.vector = x * 3  # type: ignore[attr-defined]
    holder.made = score
    return x


@pytest.mark.parametrize(
    ("function", "why", "seen"),
    [
        (lengths, "an attribute, lengths", lambda holder, result: result.lengths),
        (token, "leaves a .*Token", lambda holder, _: holder.made.vector),
        (pair, "leaves a .*Pair", lambda holder, _: holder.made.tag),
        (by_tensor, "leaves a builtins.dict", lambda holder, _: next(iter(holder.made))),
        (by_id, r"asks for id\(\)", lambda holder, _: [*holder.cache]),
    ],
)
def test_what_calls_could_not_make_again(
    function: Callable[..., Any], why: str, seen: Callable[[Any, Any], Any]
) -> None:
    holders = SimpleNamespace(cache={}), SimpleNamespace(cache={})
    jitted = sg.jit(function, executors=["torch"])
    with falls_back(why):
        found = seen(holders[0], jitted(holders[0], X))
    expected = seen(holders[1], function(holders[1], X))
    assert torch.equal(found, expected) if isinstance(found, Tensor) else found == expected


def test_attributes_of_a_function_made_inside() -> None:
    holder, jitted = SimpleNamespace(), sg.jit(scored, executors=["torch"], strict=True)
    for x in (X, X * 2):
        jitted(holder, x)
        assert torch.equal(holder.made.vector, x * 3)


def test_modes_that_are_asked_for() -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if torch.is_inference_mode_enabled() else x

    jitted = sg.jit(function, executors=["torch"])
    with torch.inference_mode(), falls_back("whether inference mode is on"):
        assert torch.equal(jitted(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_a_traced_module_inside() -> None:
    class Net(nn.Module):
        """Has one."""

        def __init__(self) -> None:
            super().__init__()
            self.body = torch.jit.trace(nn.Linear(2, 2), (X,))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) * 2  # type: ignore[no-any-return]

    net = Net()
    with falls_back("a scripted Linear"):
        assert torch.equal(sg.jit(net, executors=["torch"])(X), net(X))


RANDOM = random.Random(3)


def scaled_by_environment(x: Tensor) -> Tensor:
    y = x * 2 if os.environ.get("SWITCHGEAR_TEST_SCALE") == "1" else x
    return y if x.sum().item() > 0 else -y


def scaled_by_chance(x: Tensor) -> Tensor:
    y = x * RANDOM.random()
    return y if x.sum().item() > 0 else -y


@functools.lru_cache
def table(size: int) -> Tensor:
    """Kept."""
    return torch.randn(size)


def test_what_no_part_of_a_function_would_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchDynamo takes the environment and a stream for what they were, and calls what a memo is of."""
    environment = sg.jit(scaled_by_environment, executors=["torch"], fallback="split")
    with falls_back(kind="DataDependent"):
        assert torch.equal(environment(X), X)
    monkeypatch.setenv("SWITCHGEAR_TEST_SCALE", "1")
    assert torch.equal(environment(X), X * 2)
    chance = sg.jit(scaled_by_chance, executors=["torch"], fallback="split")
    with falls_back("RANDOM, a Random"):
        first = chance(X)
    assert not torch.equal(chance(X), first)
    memo = sg.jit(lambda x: x * table(x.shape[0]), executors=["torch"], fallback="split")
    with falls_back("_lru_cache_wrapper"):
        first = memo(X)
    assert torch.equal(memo(X), first)


class Drawing(random.Random):
    """A stream of a user's class."""


@pytest.mark.parametrize(
    ("stream", "name"),
    [
        *((random.Random, "random"), (Drawing, "random")),
        *((np.random.default_rng, "random"), (np.random.RandomState, "random_sample")),
    ],
)
def test_a_stream_that_is_reached_falls_back(stream: Callable[[int], Any], name: str) -> None:
    ours, plain = stream(3), stream(3)
    jitted = sg.jit(lambda x: x * sum(draw() for draw in [getattr(ours, name)]), executors=["torch"])
    with falls_back("ours, a .*use it outside of the function"):
        drawn = [jitted(X) for _ in range(3)]
    assert all(torch.equal(result, X * getattr(plain, name)()) for result in drawn)


@pytest.mark.parametrize("size", [None, 128, 2])
def test_a_memo_keeps_what_it_holds(size: int | None) -> None:
    @functools.lru_cache(maxsize=size)
    def state(user: str) -> Tensor:
        return torch.zeros(2)

    first = state("a").fill_(7)
    jitted = sg.jit(lambda x, user: x + state(user), executors=["torch"], fallback="eager")
    with falls_back("_lru_cache_wrapper"):
        assert torch.equal(jitted(X, "b"), X)
    assert state("a") is first
    assert type(state("b")) is Tensor
    assert not internals.is_wrapper(state("b"))
    assert torch.equal(jitted(X, "a"), X + 7)
    assert torch.equal(jitted(X, "c"), X)
    assert state.cache_info().currsize == min(3, size or 3)


FACTORS = {"a": 2.0}


@functools.lru_cache
def factor(name: str) -> float:
    return FACTORS[name]


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_memo_that_is_cleared_is_asked_again(is_warm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = sg.jit(lambda x: x * factor("a"), executors=["torch"], strict=True)
    factor.cache_clear()
    if is_warm:
        factor("a")
    assert torch.equal(jitted(X), X * 2)
    monkeypatch.setitem(FACTORS, "a", 3.0)
    assert torch.equal(jitted(X), X * 2)
    factor.cache_clear()
    assert factor("a") == 3
    assert torch.equal(jitted(X), X * 3)
    assert sg.cache_info(jitted).fallbacks == 0


def test_a_memo_that_drops_what_was_used_longest_ago() -> None:
    def run(jit: Callable[[Any], Any]) -> list[tuple[Any, list[int]]]:
        memo: OrderedDict[int, Tensor] = OrderedDict()

        def function(x: Tensor) -> Tensor:
            size = x.shape[0]
            if size in memo:
                memo.move_to_end(size)
            else:
                memo[size] = x.sum()
            if len(memo) > 2:
                memo.popitem(last=False)
            return x + memo[size]

        call = jit(function)
        return [(call(torch.ones(size)).tolist(), [*memo]) for size in (1, 2, 1, 3, 2)]

    assert run(lambda function: sg.jit(function, executors=["torch"], strict=True)) == run(lambda function: function)


def test_a_stream_that_is_named_and_not_drawn_from() -> None:
    """As layer drop does in evaluation."""

    def function(x: Tensor, chance: float) -> Tensor:
        return x if chance and _chance() < chance else x * 2

    jitted = sg.jit(function, executors=["torch"])
    for _ in range(2):
        assert torch.equal(jitted(torch.ones(2), 0.0), torch.full((2,), 2.0))
    assert "0 in eager" in repr(jitted)
