"""Calls that capture refuses: they run in eager, and say why once."""

from __future__ import annotations

import contextlib
import copy
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import switchgear as sg
from switchgear import errors
from tests.oracle import differences


@contextlib.contextmanager
def falls_back(match: str = "", kind: str = "Unsupported") -> Iterator[None]:
    """Inside, one call of a jitted function falls back to eager, for a reason of that kind that matches."""
    with fallback_told(rf"{kind}: .*({match})") as caught:
        yield
    said = [warning for warning in caught if warning.category is errors.FallbackWarning]
    assert len(said) == 1, [str(warning.message) for warning in said]


@contextlib.contextmanager
def fallback_told(match: str = "") -> Iterator[pytest.WarningsRecorder]:
    """Inside, a call falls back, and what is told before the reason, with the whole reason, matches.

    The message itself is three lines of at most 100 columns.
    """
    with pytest.warns(errors.FallbackWarning) as caught:
        yield caught
    messages = [one.message for one in caught if isinstance(one.message, errors.FallbackWarning)]
    for message in messages:
        lines = str(message).splitlines()
        assert len(lines) <= 3, lines
        assert max(map(len, lines)) <= 100, lines
    told = [f"{str(message).partition(':')[0]}: {message.reason}" for message in messages]
    assert any(re.search(match, one, re.DOTALL) for one in told), (match, told)


def assert_falls_back(
    function: Callable[..., Any], arguments: Callable[[], tuple[Any, ...]], match: str = "", kind: str = "Unsupported"
) -> None:
    """A function jitted gives eager's results and gradients twice, falls back for a reason that matches, and says so.

    `arguments` makes them anew, the same each time. Under `strict=True` the call raises.
    """
    jitted = sg.jit(function, executors=["torch"])
    expected = _observed(function, arguments)
    with falls_back(match, kind):
        first = _observed(jitted, arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = _observed(jitted, arguments)
    for actual in (first, second):
        assert not list(differences(expected, actual, "call"))
    assert "2 of 2 calls (100%) ran in eager" in str(sg.explain(jitted))
    with pytest.raises(getattr(errors, kind), match=match):
        sg.jit(function, executors=["torch"], strict=True)(*arguments())


def _observed(function: Callable[..., Any], arguments: Callable[[], tuple[Any, ...]]) -> Any:
    """What a call returns or raises, what it leaves in its arguments and in the random stream, and gradients."""
    torch.manual_seed(0)
    args = arguments()
    try:
        result = function(*args)
    except Exception as error:
        return type(error), str(error)
    state = torch.get_rng_state()
    inputs, outputs = _tensors(args), _tensors(result)
    leaves = [tensor for tensor in inputs if tensor.is_leaf and tensor.requires_grad]
    ends = [tensor for tensor in outputs if tensor.grad_fn is not None]
    gradients: Any = ()
    if leaves and ends:
        gradients = torch.autograd.grad(ends, leaves, [torch.ones_like(end) for end in ends], allow_unused=True)
    values = [tensor.detach() for tensor in (*inputs, *outputs)]
    return copy.deepcopy((values, [tensor.requires_grad for tensor in outputs], gradients, state))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
