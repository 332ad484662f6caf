"""Functionalization: wrappers stand for what was written, and kernels of our own are exact where PyTorch's are not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from switchgear_core.torch_private import functionalize, new_fake_mode
from tests.in_turn import in_turn


@pytest.fixture
def mode() -> Iterator[Any]:
    """A mode of fakes in which what is made is a wrapper."""
    fakes = new_fake_mode()
    with fakes, functionalize.functionalization(), functionalize.exact_functionalization(), torch.no_grad():
        yield fakes


@in_turn(training__has_statistics__saved=[(True, True, 3), (True, False, 3), (False, True, 0)])
def test_batch_norm_of_cudnn(mode: Any, training: bool, has_statistics: bool, saved: int) -> None:
    x, *channels = torch.empty(2, 3, 4, 4, device="cuda"), *[torch.empty(3, device="cuda") for _ in range(4)]
    assert functionalize.is_wrapper(x)
    means = channels[2:] if has_statistics else [None, None]
    results: Any = functionalize._declared_gpu_batch_norm(x, *channels[:2], *means, training, 0.1, 1e-5)
    assert [tuple(one.shape) for one in results[:3]] == [(2, 3, 4, 4), (saved,), (saved,)]
    assert all(functionalize.is_wrapper(one) for one in results[:3])
    plain = [one if one is None else functionalize.unwrap(one) for one in (x, *channels[:2], *means)]
    if not has_statistics or not training:
        again: Any = functionalize._declared_gpu_batch_norm(*plain, training, 0.1, 1e-5)
        assert not any(functionalize.is_wrapper(one) for one in again)


@in_turn(training=[True, False])
def test_batch_norm_writes_its_statistics(mode: Any, training: bool) -> None:
    x, mean, variance = torch.empty(2, 3), torch.empty(3), torch.empty(3)
    before = functionalize.unwrap(mean), functionalize.unwrap(variance)
    result = torch.native_batch_norm(x, None, None, mean, variance, training, 0.1, 1e-5)[0]
    after = functionalize.unwrap(mean), functionalize.unwrap(variance)
    assert functionalize.is_wrapper(result)
    assert [one is other for one, other in zip(before, after, strict=True)] == [not training] * 2


def test_batch_norm_without_statistics(mode: Any) -> None:
    result = torch.native_batch_norm(torch.empty(2, 3), None, None, None, None, True, 0.1, 1e-5)
    assert [tuple(one.shape) for one in result] == [(2, 3), (3,), (3,)]


@in_turn(value=[1.0, torch.tensor(1.0)])
def test_masked_fill_keeps_the_strides(mode: Any, value: Any) -> None:
    value = torch.empty(()) if isinstance(value, Tensor) else value
    x, mask = torch.empty_strided((2, 3), (1, 2)), torch.empty(3, dtype=torch.bool)
    before = functionalize.unwrap(x)
    assert x.masked_fill_(mask, value) is x
    assert functionalize.unwrap(x) is not before
    assert functionalize.unwrap(x).stride() == (1, 2)
    with pytest.raises(RuntimeError, match=r"masked_fill_: a mask of shape \[4, 2, 3\] for a tensor of shape \[2, 3\]"):
        x.masked_fill_(torch.empty(4, 2, 3, dtype=torch.bool), value)


def test_masked_fill_of_what_is_no_wrapper() -> None:
    x, mask = torch.zeros(3), torch.tensor([True, False, True])
    with functionalize.functionalization(), functionalize.exact_functionalization():
        assert not functionalize.is_wrapper(x)
        assert x.masked_fill_(mask, 2.0) is x
    assert x.tolist() == [2.0, 0.0, 2.0]


def test_aliases_follow_where_that_is_asked_for(mode: Any) -> None:
    for aliases in (False, True):
        base = torch.empty(2, 3)
        view = base.view(6)
        other = functionalize.unwrap(torch.empty(2, 3))
        functionalize.rebind(base, other, aliases=aliases)
        before = functionalize.unwrap(view, synchronise=False)
        assert functionalize.unwrap(base, synchronise=False) is other
        after = functionalize.unwrap(view)
        assert (after is not before) is aliases
        assert not functionalize.storage_replaced(base)
        assert not functionalize.storage_resized(base)


def test_contexts_nest() -> None:
    is_on = torch._C._dispatch_tls_is_dispatch_key_included
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(functionalize.functionalization())
            stack.enter_context(functionalize.exact_functionalization())
        assert is_on("Functionalize")
        assert len(functionalize._EXACT) == 1
    assert not is_on("Functionalize")
    assert not functionalize._EXACT


def test_memory_that_is_shared() -> None:
    base = torch.zeros(4)
    tensors = [base, base[1:], torch.zeros(4)]
    keys = functionalize.storage_keys(tensors)
    assert keys == [*map(functionalize.storage_key, tensors)]
    assert (keys[0] == keys[1], keys[0] == keys[2]) == (True, False)
    assert not functionalize.none_share_storage(tensors)
    assert functionalize.none_share_storage(tensors[1:])
