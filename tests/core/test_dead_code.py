"""Dead code: what no output needs goes, but for what draws, checks or has an effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import switchgear as sg
from tests.core.training import operators
from tests.in_turn import in_turn


def checked(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all())
    x.cos()
    return x + 1


@in_turn(
    function__names=[
        (lambda x: (x.cos(), x + 1)[1], ["add"]),
        (lambda x: (x.cos().sin(), x.exp() + 1)[1], ["exp", "add"]),
        (lambda x: (x.max(0).values, x + 1)[0], ["max"]),
        (lambda x: (torch.rand(3), x + 1)[1], ["rand", "add"]),
        (lambda x: (torch.rand_like(x.cos()), x + 1)[1], ["cos", "rand_like", "add"]),
        (checked, ["gt", "all", "_assert_async", "add"]),
    ],
)
def test_what_stays(function: Callable[[Tensor], Any], names: list[str]) -> None:
    jitted, x = sg.jit(function, executors=["torch"], strict=True), torch.ones(3)
    torch.manual_seed(0)
    assert torch.equal(jitted(x), function(x))
    state = torch.get_rng_state()
    torch.manual_seed(0)
    function(x)
    function(x)
    assert torch.equal(torch.get_rng_state(), state)
    lines = operators(sg.last_traces(jitted)[-1])
    assert [name.split(".")[1] for name in lines] == names
