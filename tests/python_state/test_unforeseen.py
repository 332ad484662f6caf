"""Code that capture did not see coming: what it reads is guarded all the same, or the call runs in eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from tests.falling_back import falls_back

FACTOR = 2
FACTORS = [2]
SETTINGS = SimpleNamespace(factor=1.0)
HERE = sys.modules[__name__]


def _scale_by_number(x: Tensor) -> Tensor:
    return x * FACTOR


def _scale_by_list(x: Tensor) -> Tensor:
    return x * FACTORS[0]


def _scale_and_count(x: Tensor) -> Tensor:
    global FACTOR
    FACTOR += 1
    return x * FACTOR


def _shared(factors: list[int]) -> Callable[[Tensor], Tensor]:
    def _scale(x: Tensor) -> Tensor:
        return x * factors[0]

    return _scale


_scale_by_shared_list = _shared(FACTORS)


class Scaling:
    """Its methods are reached by nobody's name for them."""

    def __init__(self) -> None:
        self.factor = FACTOR

    def __str__(self) -> str:
        return str(FACTOR)

    def again(self) -> Any:
        return type(self)()


THE_ONE = Scaling()
KINDS: dict[str, Any] = {"scaling": Scaling}


def _computed(kind: str) -> Callable[[Tensor], Tensor]:
    return lambda x: getattr(HERE, "_scale" + kind)(x)


def _assigned() -> nn.Module:
    module = nn.Sequential(nn.Identity())
    module[0].forward = _scale_by_number
    return module


class Factor(torch.autograd.Function):
    """Its gradient has a factor of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        scaled: Tensor = _scale_by_number(grad) * SETTINGS.factor
        return scaled


SEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "a function that is mapped": torch.func.vmap(_scale_by_number),
    "a function that is differentiated": sg.grad(lambda x: _scale_by_number(x).sum()),
    "a forward that was assigned": _assigned(),
    "a function by a computed name": _computed("_by_number"),
    "a class out of a dict": lambda x: x * KINDS["scaling"]().factor,
    "the class of an object": lambda x: x * THE_ONE.again().factor,
    "what shows an object": lambda x: x * float(str(THE_ONE)),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_it_reads_is_guarded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, jitted = torch.ones(2), sg.jit(SEEN[name], executors=["torch"])
    assert torch.equal(jitted(x), 2 * x)
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert torch.equal(jitted(x), 5 * x)
    assert sg.cache_info(jitted).entries == 2


def test_what_a_backward_reads_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = sg.jit(lambda x: Factor.apply(x), executors=["torch"])  # type: ignore[no-untyped-call]
    for factor, other in ((2, 1.0), (5, 1.0), (3, 1.0), (5, 1.0), (5, 0.5)):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        monkeypatch.setattr(SETTINGS, "factor", other)
        x = torch.ones(2, requires_grad=True)
        jitted(x).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full_like(x, factor * other))
    assert sg.cache_info(jitted).entries == 4


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("_by_list", r"reads tests.python_state.test_unforeseen.FACTORS \(list\)"),
        ("_by_shared_list", r"reads factors \(list\)"),
        ("_and_count", "writes to a global variable"),
    ],
)
def test_what_may_have_changed_is_refused(kind: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 2)
    jitted = sg.jit(_computed(kind), executors=["torch"])
    with falls_back(why):
        jitted(torch.ones(2))
    assert not sg.cache_info(jitted).entries
