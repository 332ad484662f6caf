"""Floats that change between calls are inputs from the second program on, with eager's bits."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from switchgear.errors import Unsupported
from switchgear_frontend.floats import Float

VALUES = (0.1, 0.7, -1.3, 2.0, 1e-3, math.inf, 0.0)

#: Programs, each with how many programs `VALUES` take.
PROGRAMS: dict[str, tuple[Callable[[Tensor, float], Any], int]] = {
    "product": (lambda x, f: x * f, 2),
    "product from the left": (lambda x, f: f * x, 2),
    "sum": (lambda x, f: torch.add(x, f), 2),
    "difference": (lambda x, f: x.sub(f), 2),
    "difference from the left": (lambda x, f: f - x, 2),
    "quotient": (lambda x, f: x / f, 2),
    "quotient from the left": (lambda x, f: f / x, 2),
    "comparisons": (lambda x, f: (x > f) ^ (x == f) | (f <= x), 2),
    "in place": (lambda x, f: x.clone().mul_(f) if x.is_floating_point() else x * f, 2),
    "assigned in place": (lambda x, f: _in_place(x.clone() * 1.0, f), 2),
    "arithmetic of Python": (lambda x, f: x * (-f * 3 + abs(f) - f * f + (f - 2) / 7 + (1 - f)), 2),
    "a quotient of Python": (lambda x, f: x * (1 / f) if f else x, 3),
    "a tensor of it": (lambda x, f: torch.tensor(f) * x + torch.tensor(f, dtype=torch.float64), 2),
    "a branch": (lambda x, f: x * f if f > 0.5 else x - f, 3),
    "clipped": (lambda x, f: x * max(f, 0.3), 3),
    "read as a number": (lambda x, f: x * math.exp(-abs(f)), 7),
    "clamped": (lambda x, f: x.clamp(max=f), 7),
    "a power": (lambda x, f: x.abs() ** f, 7),
    "a scaled sum": (lambda x, f: torch.add(x * 1.0, x * 1.0, alpha=f), 7),
    "returned": (lambda x, f: [x * f, f * 2], 2),
}


def _in_place(x: Tensor, f: float) -> Tensor:
    x += f
    x /= 2.0
    return x


def outcome(function: Callable[..., Any], x: Tensor, number: float) -> Any:
    """The results with their types, and the gradient; or the error."""
    try:
        result = function(x, number)
    except Exception as error:
        return type(error), str(error)
    results = [*result] if isinstance(result, list) else [result]
    if x.requires_grad and results[0].requires_grad:
        results += torch.autograd.grad(results[0].sum(), x)
    return [(one.dtype, one.shape, repr(one.tolist())) if isinstance(one, Tensor) else repr(one) for one in results]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize("shape", [(5,), ()], ids=["five", "one"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_eager(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    function, programs = PROGRAMS[name]
    for grad in (False, True) if dtype.is_floating_point else (False,):
        jitted = sg.jit(function, executors=["torch"], recompile_limit=99)
        torch.manual_seed(0)
        for number in VALUES:
            x = (torch.randn(shape) * 3).to(dtype).requires_grad_(grad)
            assert outcome(jitted, x, number) == outcome(function, x, number)
    if dtype is torch.float32:
        raised = sum(isinstance(outcome(function, x, number), tuple) for number in VALUES)
        assert sg.cache_info(jitted).misses == programs - raised


def test_the_default_executors_take_them_too() -> None:
    layer = nn.Linear(4, 4)
    jitted = sg.jit(lambda x, t: (layer(x) / t).softmax(-1) * (1 - t))
    for step in range(12):
        x = torch.randn(8, 4)
        torch.testing.assert_close(jitted(x, 0.9**step), (layer(x) / 0.9**step).softmax(-1) * (1 - 0.9**step))
    assert sg.cache_info(jitted).misses == 2


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.temperature, self.rates = nn.Linear(4, 4), 1.0, {"decay": 0.9}

    def forward(self, x: Tensor) -> Tensor:
        self.temperature = self.temperature * self.rates["decay"]
        y: Tensor = self.layer(x) / self.temperature
        return y


def test_floats_kept_in_objects() -> None:
    ours = Annealed()
    eager = copy.deepcopy(ours)
    jitted = sg.jit(ours, executors=["torch"])
    for step in range(20):
        if step == 10:
            ours.rates["decay"] = eager.rates["decay"] = 0.8
        x = torch.randn(3, 4)
        assert torch.equal(jitted(x), eager(x))
        assert ours.temperature == eager.temperature
        assert type(ours.temperature) is float
    info = sg.cache_info(jitted)
    assert (info.misses, info.fallbacks) == (3, 0)


def test_integers_are_no_floats() -> None:
    jitted = sg.jit(lambda x, f: x * f, executors=["torch"])
    x = torch.arange(3)
    for number in (0.5, 0.25, 2, 0.125, True, 3, 4, 0.0625):
        assert jitted(x, number).dtype == (x * number).dtype
        assert torch.equal(jitted(x, number), x * number)


@pytest.mark.parametrize(
    "ask", [float, int, round, math.floor, math.exp, str, hash, lambda f: f**2, lambda f: f % 2, lambda f: f // 2]
)
def test_whatever_asks_for_the_number_is_refused(ask: Callable[[Any], object]) -> None:
    with pytest.raises(Unsupported, match="a float that changes between calls is asked for its value"):
        ask(Float(torch.tensor(0.5, dtype=torch.float64)))
