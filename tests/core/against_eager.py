"""Compares a function or module run through `sg.jit` with the same one run by PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests import under_test
from tests.databases.verdict import Case, Outcome, judge
from tests.under_test import UnderTest


def check(target: Callable[..., Any], *args: Any, gradient: bool = True, **kwargs: Any) -> None:
    """Call twice, the second time from the cache: everything that a call leaves behind is eager's, to the bit.

    That is: outputs, gradients and which of them are None, arguments and module state afterwards, the random stream.
    """
    name = getattr(target, "__name__", type(target).__name__)
    verdict = judge(Case(name, "", "", target, args, kwargs, gradient), UnderTest(tuple(under_test.EXECUTORS)))
    assert verdict.outcome is Outcome.EQUAL, f"{name} is {verdict.outcome} ({verdict.error}): {verdict.detail}"


def numbers(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Different numbers around zero, made without the random stream."""
    count = 1
    for size in shape:
        count *= size
    values = torch.sin(torch.arange(1, count + 1, dtype=torch.float64)).reshape(shape)
    # a tensor of its own: views that are told to require grad are another matter
    return values.to(dtype).clone().requires_grad_(grad)
