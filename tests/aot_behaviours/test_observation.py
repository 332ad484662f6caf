"""The comparison itself: it sees each kind of difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.aot_behaviours import observation
from tests.aot_behaviours.observation import arguments, check, leaves, results, succeeds, values


def doubled(x: Tensor) -> Tensor:
    return x * 2


def other_value(x: Tensor) -> Tensor:
    return x * 3


def other_gradient(x: Tensor) -> Tensor:
    return x + x.detach()


def no_history(x: Tensor) -> Tensor:
    return (x * 2).detach()


def other_strides(x: Tensor) -> Tensor:
    return (x * 2).t().contiguous().t()


def other_structure(x: Tensor) -> tuple[Tensor]:
    return (x * 2,)


def writes(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(1)
    return x * 2


def raises(x: Tensor) -> Tensor:
    raise RuntimeError(f"no {x.shape}")


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (other_value, "output 0 after the call: values: 9 of 9 values differ"),
        (other_gradient, "gradient of leaf 0: values"),
        (no_history, "requires_grad is False"),
        (other_strides, "strides is"),
        (other_structure, "structure of the output"),
        (writes, "has a new version is True"),
        (raises, "raised RuntimeError"),
    ],
)
def test_each_kind_of_difference_is_seen(
    other: Callable[..., Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is another function than eager's is called different, and by the right name."""
    monkeypatch.setattr(observation, "_jit", lambda target, kinds: other)
    with pytest.raises(AssertionError, match=named):
        check(doubled, leaves((3, 3)))


@pytest.mark.parametrize(
    ("eager", "other", "named"),
    [
        (lambda x: x.view(-1), lambda x: x.reshape(-1).clone(), r"relation is \(\), eager's \('same storage', 'same b"),
        (lambda x: x, lambda x: x.view(3, 3), "'identical'"),
        (lambda x: x.view(-1), lambda x: x.detach().view(-1).requires_grad_(), "is_leaf is True"),
        (lambda x: (x.exp(),) * 2, lambda x: (x.exp(), x.exp()), "'identical'"),
        (lambda x: x.unbind(), lambda x: tuple(x[i] for i in range(3)), "writing to output 0 is works"),
    ],
)
def test_each_relation_is_seen(
    eager: Callable[..., Any], other: Callable[..., Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is whom, and who is whose view, is part of the result."""
    monkeypatch.setattr(observation, "_jit", lambda target, kinds: other)
    with pytest.raises(AssertionError, match=named):
        check(eager, results((3, 3)))


def test_compiling_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that should have come from the cache and does not is a fault."""
    monkeypatch.setattr(
        observation, "_jit", lambda target, kinds: sg.jit(target, cache_size=1, recompile_limit=kinds, dynamic=False)
    )
    with pytest.raises(AssertionError, match="RecompileWarning"):
        check(doubled, leaves((3, 3)), leaves((2, 4)))


def test_what_is_the_same_passes() -> None:
    """Eager against itself, through the real jit."""
    assert succeeds(check(doubled, leaves((3, 3)), leaves((2, 4)), arguments(values(3, grad=True))))
