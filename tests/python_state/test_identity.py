"""Objects that are one in a call, and two in another: `is` tells, and what is written to one is read of the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from tests.falling_back import fallback_told

X = torch.ones(1)


class Box:
    """Holds a number."""

    def __init__(self, number: int = 1) -> None:
        self.number = number


class Slotted:
    """Holds it in a slot."""

    __slots__ = ("number",)

    def __init__(self, number: int = 1) -> None:
        self.number = number


KNOWN = Box()
KNOWN_LIST = [1]


def reads(a: Any, b: Any) -> Any:
    return X * a.number + b.number


def writes(a: Any, b: Any) -> Any:
    a.number = 7
    return X * b.number


def asks(a: Any, b: Any) -> Any:
    return X if a is b else X * 2


def appends(a: Any, b: Any) -> Any:
    a.append(1)
    return X * len(b)


def asks_for_a_global(a: Any) -> Any:
    return X if a is KNOWN else X * 2


def writes_a_global(a: Any) -> Any:
    KNOWN.number = 3
    return X * a.number


def asks_for_a_global_list(a: Any) -> Any:
    a.append(2)
    return X if a is KNOWN_LIST else X * 2


def asks_for_parts(a: Any) -> Any:
    return X if a.one is a.two else X * 2


def writes_an_element(a: Any) -> Any:
    a[0].number = 5
    return X * a[1].number


def one(kind: Callable[[], Any]) -> tuple[Any, Any]:
    made = kind()
    return made, made


CASES: list[tuple[Callable[..., Tensor], Callable[[], tuple[Any, ...]], Callable[[], tuple[Any, ...]]]] = [
    *((f, lambda: one(Box), lambda: (Box(), Box(4))) for f in (reads, writes, asks)),
    *((f, lambda: one(Slotted), lambda: (Slotted(), Slotted())) for f in (reads, writes, asks)),
    (appends, lambda: one(list), lambda: ([], [])),
    (asks, lambda: one(object), lambda: (object(), object())),
    (asks_for_a_global, lambda: (KNOWN,), lambda: (Box(),)),
    (writes_a_global, lambda: (KNOWN,), lambda: (Box(),)),
    (asks_for_a_global_list, lambda: (KNOWN_LIST,), lambda: ([*KNOWN_LIST],)),
    (
        asks_for_parts,
        lambda: (SimpleNamespace(one=KNOWN, two=KNOWN),),
        lambda: (SimpleNamespace(one=Box(), two=Box()),),
    ),
    *(
        (writes_an_element, lambda kind=kind: (kind(one(Box)),), lambda kind=kind: (kind((Box(), Box())),))
        for kind in (list, tuple, deque)
    ),
]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_one_object_and_two(case: tuple[Any, ...], first: int) -> None:
    function, *calls = case

    def results(run: Callable[..., Tensor]) -> list[Tensor]:
        KNOWN.number, KNOWN_LIST[:] = 1, [1]
        return [run(*calls[(first + number) % 2]()) for number in range(4)]

    jitted = sg.jit(function, executors=["torch"])
    assert results(jitted) == results(function)
    info = sg.cache_info(jitted)
    assert info.fallbacks == 0
    assert info.entries <= (4 if function is asks_for_a_global_list else 2)  # one grows in each call


def test_why() -> None:
    jitted = sg.jit(asks, executors=["torch"])
    for call in (one(Box), (Box(), Box()), one(Box)):
        jitted(*call)
    info = sg.cache_info(jitted)
    assert info.reasons[1] == "argument 0 and argument 1 (from one object to two) changed"
    assert info.hits == 1


def test_another_object_with_other_tensors_in_its_place() -> None:
    held = SimpleNamespace(tensor=torch.ones(2))
    tensor = torch.ones(2)
    jitted = sg.jit(lambda x: x * held.tensor + x * tensor, executors=["torch"])
    for number in range(3):
        held, tensor = SimpleNamespace(tensor=torch.full((2,), number)), torch.full((2,), number)
        assert torch.equal(jitted(tensor), tensor * held.tensor + tensor * tensor)
        assert torch.equal(jitted(X), X * held.tensor + X * tensor)


class Net(nn.Module):
    """Asks whether it is given what it has, and keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Box()

    def forward(self, x: Tensor, config: Box, batch: Any) -> Tensor:
        self.batch = batch
        return x if config is self.config else x * 2


def test_what_a_module_has() -> None:
    net = Net()
    jitted = sg.jit(net, executors=["torch"])
    for config in (net.config, Box(), net.config):
        batch = {"x": X}
        assert torch.equal(jitted(X, config, batch), X if config is net.config else X * 2)
        assert net.batch is batch
    assert sg.cache_info(jitted).fallbacks == 0


class Remembering(nn.Module):
    """Keeps the last tensor it was given, and what it made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.last is x or (self.seen and x is self.seen[-1]):
            return x * 0
        self.last = x
        return x + 1


def test_a_tensor_that_is_kept() -> None:
    plain, net = Remembering(), Remembering()
    jitted, a, b = sg.jit(net, executors=["torch"]), torch.ones(2), torch.ones(2)
    assert torch.equal(jitted(a), plain(a))
    with fallback_told(r"Remembering\.last, a tensor, may be compared by `is`; pass"):
        assert torch.equal(jitted(a), plain(a))
    for x in (b, b, a):
        assert torch.equal(jitted(x), plain(x))
        assert net.last is x
    plain.seen, net.seen = [b], [b]
    for x in (a, b, a):
        assert torch.equal(jitted(x), plain(x))
