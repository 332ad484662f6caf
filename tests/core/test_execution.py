"""Which outputs of a compiled program may be views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import switchgear as sg
from switchgear_core.nesting import tensors_in
from switchgear_runtime.execution import maybe_views
from switchgear_runtime.last_call import compiler_of
from tests.core.training import executor
from tests.in_turn import in_turn


def program(function: Callable[..., Any], *executors: Any) -> Any:
    """The forward of a function of a matrix, without gradients."""
    jitted = sg.jit(function, executors=[*executors, "torch"], strict=True)
    x = torch.arange(6.0).reshape(2, 3)
    for result, expected in zip(tensors_in(jitted(x)), tensors_in(function(x)), strict=True):
        assert torch.equal(result, expected)
    (forward,) = compiler_of(jitted).last.programs()  # type: ignore[union-attr]
    return forward


SINE = executor("mine", {torch.sin: lambda x: torch.sin(x)})


@in_turn(
    function__executors__places=[
        (lambda x: (x + 1, x[0] * 2), (), ()),
        (lambda x: x + 1, (), ()),
        (lambda x: x.sin(), (SINE,), (0,)),  # a plugin's may be anything
        (lambda x: (x.sin(), x.cos()), (SINE,), (0,)),
    ],
)
def test_outputs_that_may_be_views(function: Callable[[Tensor], Any], executors: Any, places: tuple[int, ...]) -> None:
    assert maybe_views(program(function, *executors)) == places
