"""Attributes of jitted and decorated functions, read and written inside: counters, options, memos."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg

X = torch.ones(2)
jit = functools.partial(sg.jit, executors=["torch"], strict=True)


def test_a_function_counts_its_calls() -> None:
    @jit
    def function(x: Tensor) -> Any:
        function.calls += 1
        return x * function.calls

    function.calls = 0
    assert [function(X)[0].item() for _ in range(3)] == [1, 2, 3]
    assert function.calls == 3


@pytest.mark.parametrize("before", [{}, {"scale": 2}])
def test_an_attribute_is_set_between_calls(before: dict[str, int]) -> None:
    @jit
    def function(x: Tensor) -> Any:
        return x * getattr(function, "scale", 1)

    vars(function).update(before)
    assert torch.equal(function(X), X * before.get("scale", 1))
    function.scale = 3
    assert torch.equal(function(X), X * 3)
    del function.scale
    assert torch.equal(function(X), X)


def test_a_function_of_the_users_has_none_at_first() -> None:
    def inner(x: Tensor) -> Any:
        return x * getattr(inner, "scale", 1)

    outer = jit(lambda x: inner(x) + (2 if hasattr(inner, "more") else 1))
    assert torch.equal(outer(X), X + 1)
    inner.scale = 3  # type: ignore[attr-defined]
    assert torch.equal(outer(X), X * 3 + 1)
    inner.more = True  # type: ignore[attr-defined]
    assert torch.equal(outer(X), X * 3 + 2)


def test_a_function_keeps_a_tensor() -> None:
    @jit
    def function(x: Tensor) -> Any:
        if not hasattr(function, "memo"):
            function.memo = x * 5
        return function.memo + x

    assert [function(X * factor)[0].item() for factor in (1, 2, 3)] == [6, 7, 8]
    assert torch.equal(function.memo, X * 5)


def test_another_function_reads_it() -> None:
    inner: Any = jit(lambda x: x * inner.scale)
    inner.scale = 2
    outer = jit(lambda x: inner(x) + inner.scale)
    assert torch.equal(outer(X), X * 4)
    inner.scale = 3
    assert torch.equal(outer(X), X * 6)


def test_of_a_function_that_pytorch_has_decorated() -> None:
    @torch.no_grad()
    def inner(x: Tensor) -> Any:
        inner.calls += 1  # type: ignore[attr-defined]
        return x * inner.calls  # type: ignore[attr-defined]

    inner.calls = 0  # type: ignore[attr-defined]
    outer = jit(lambda x: inner(x) + 0)
    assert [outer(X)[0].item() for _ in range(3)] == [1, 2, 3]


def test_of_a_memo() -> None:
    @functools.lru_cache
    def memo(size: int) -> int:
        return size

    memo.scale = 2  # type: ignore[attr-defined]
    memo(3)
    outer = jit(lambda x: x * memo(3) * memo.scale)  # type: ignore[attr-defined]
    assert torch.equal(outer(X), X * 6)
    memo.scale = 4  # type: ignore[attr-defined]
    assert torch.equal(outer(X), X * 12)
