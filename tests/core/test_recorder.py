"""The recorder: which tensors from outside of a capture become inputs, and which it cannot use."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import switchgear as sg
from tests.falling_back import falls_back


def test_a_tensor_that_is_closed_over_is_an_input_of_each_call() -> None:
    held = [torch.ones(2)]
    jitted = sg.jit(lambda x: x * held[0] + held[0], executors=["torch"], strict=True)
    for value in (2.0, 3.0):
        held[0].fill_(value)
        assert jitted(torch.ones(2)).tolist() == [2 * value] * 2
    assert sg.cache_info(jitted).misses == 1
    assert len(sg.last_traces(jitted)[0].inputs) == 2


def test_an_argument_that_is_reached_otherwise_is_one_input() -> None:
    held: list[Tensor] = []
    jitted = sg.jit(lambda x: x * held[0], executors=["torch"], strict=True)
    for value in (2.0, 3.0):
        x = torch.full((2,), value)
        held[:] = [x]
        assert jitted(x).tolist() == [value * value] * 2
    x, held[:] = torch.full((2,), 5.0), [torch.ones(2)]
    assert jitted(x).tolist() == [5.0] * 2


def test_a_fake_of_somebody_elses_is_refused() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
    with falls_back("a tensor from outside of the trace"), pytest.raises(Exception, match="fake"):
        sg.jit(lambda x: x * fake, executors=["torch"])(torch.ones(2))
