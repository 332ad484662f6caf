"""Assertions on the data of tensors: compiled by default, checked in each call, and eager's error where one fails."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Beta, Categorical, Normal, kl_divergence

import switchgear as sg
from switchgear import errors
from tests import asserting
from tests.falling_back import falls_back
from tests.under_test import EXECUTORS

pytestmark = pytest.mark.beside_eager


_KNOWN = [
    asserting.asserted,
    asserting.raised,
    asserting.raised_otherwise,
    asserting.raised_behind_a_call,
    asserting.raised_in_the_else,
    asserting.raised_behind_other_lines,
]


@pytest.mark.parametrize("function", _KNOWN)
def test_an_assertion_on_rounded_values_is_compiled(function: Callable[..., Tensor]) -> None:
    jitted = sg.jit(function, executors=EXECUTORS)
    for value in (1.0, 2.0, 1000.0, 3.0):
        x = torch.full((3,), value)
        try:
            expected = function(x)
        except (AssertionError, ValueError) as error:
            with pytest.raises(type(error), match="infinite"):
                jitted(x)
        else:
            torch.testing.assert_close(jitted(x), expected, rtol=1e-6, atol=0)
    info = sg.cache_info(jitted)
    assert (info.entries, info.hits, info.fallbacks) == (1, 2, 0)


def test_a_branch_that_does_more_than_raise_is_checked_first() -> None:
    x = torch.ones(3)
    jitted = sg.jit(asserting.raised_now_and_then, executors=EXECUTORS, strict=True)
    jitted(x)
    (first,) = [line for line in sg.last_traces(jitted)[-1].bound_symbols if line.is_check]
    assert "late" not in first.tags
    asserted = sg.jit(asserting.raised, executors=EXECUTORS, strict=True)
    asserted(x)
    (late,) = [line for line in sg.last_traces(asserted)[-1].bound_symbols if line.is_check]
    assert "late" in late.tags


def test_an_assertion_that_the_function_catches() -> None:
    def function(x: Tensor) -> Tensor:
        try:
            return asserting.raised(x)
        except ValueError:
            return x * 3

    def catches_all(x: Tensor) -> Tensor:
        try:
            return asserting.raised(x)
        except Exception:
            return x * 3

    for one in (function, catches_all):
        jitted = sg.jit(one, executors=EXECUTORS)
        for value in (1000.0, 1.0, 2.0, 2000.0, 1.0):
            x = torch.full((3,), value)
            torch.testing.assert_close(jitted(x), one(x), rtol=1e-6, atol=0)
        assert sg.cache_info(jitted).fallbacks == 0


# -- distributions -----------------------------------------------------------------------------------------------------


def encoded(x: Tensor) -> Tensor:
    mean, scale = x.chunk(2, -1)
    posterior = Normal(mean, torch.nn.functional.softplus(scale))
    result: Tensor = posterior.rsample().sum() + kl_divergence(posterior, Normal(0.0, 1.0)).sum()
    return result


def acted(x: Tensor) -> Tensor:
    policy = Categorical(probs=x.softmax(-1))
    result: Tensor = policy.log_prob(policy.sample())
    return result


def estimated(x: Tensor) -> Tensor:
    sample = Normal(x, 1e-3).sample()
    result: Tensor = Beta(2.0, 3.0).log_prob(sample) * torch.rand(()) * x
    return result


@pytest.mark.parametrize("function", [encoded, acted, estimated])
def test_distributions_are_compiled_with_their_checks(
    function: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a test that calls torch.compile in this process has switched them off
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def run(function: Callable[..., Tensor]) -> list[Any]:
        torch.manual_seed(0)
        results: list[Any] = []
        for value in (0.5, 0.25, float("nan"), 0.75):
            x = torch.full((2, 4), value).requires_grad_()
            try:
                result = function(x)
            except ValueError as error:
                results.append(str(error).partition(",")[0])
            else:
                results += [result.detach(), *torch.autograd.grad(result.sum(), x, allow_unused=True)]
            results.append(torch.rand(()))
        return results

    jitted = sg.jit(function, executors=["torch"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FallbackWarning)
        ours = run(jitted)
    for one, other in zip(ours, run(function), strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    assert sg.cache_info(jitted).hits == 2


def test_a_check_behind_a_draw_that_fails_has_drawn_nothing() -> None:
    generator = torch.Generator()

    def function(x: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(3, generator=generator) + torch.rand(3) + x
        if not (drawn > 0).all():
            raise ValueError("not positive")
        return drawn

    def run(function: Callable[..., Tensor]) -> list[Tensor]:
        torch.manual_seed(3)
        generator.manual_seed(4)
        results = []
        for value in (1.0, 2.0, -9.0, 3.0):
            try:
                results.append(function(torch.full((3,), value), generator))
            except ValueError:
                results += [torch.rand(1), torch.rand(1, generator=generator)]
        return results

    jitted = sg.jit(function, executors=["torch"], fallback="eager")
    with falls_back("gave True, and gives False", "DataDependent"):
        ours = run(jitted)
    assert all(map(torch.equal, ours, run(function)))
    lines = [line for line in sg.last_traces(jitted)[-1].bound_symbols if line.is_check]
    assert len(lines) == 1


def test_split_functions_keep_the_checks_of_distributions() -> None:
    program = """
import torch, warnings, switchgear as sg
from torch.distributions import Normal
def f(x):
    print(end="")
    return Normal(x, x).sample()
warnings.simplefilter("ignore")
jitted = sg.jit(f, executors=["torch"])
jitted(torch.ones(2))
try:
    jitted(-torch.ones(2))
except ValueError:
    print("raised", torch.distributions.Distribution._validate_args)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.stdout == "raised True\n", done.stderr
