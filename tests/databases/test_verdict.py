"""The judge of the databases sees every kind of difference: jits that are wrong in one way each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from switchgear.errors import DataDependent
from tests.databases.refused import Refusal
from tests.databases.report import unexpected
from tests.databases.verdict import Case, Jit, Outcome, Target, Verdict, judge
from tests.oracle import Tolerance, Undefined


def call(x: torch.Tensor, more: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    return x * more["w"] + torch.rand_like(x), None


def case(*, gradient: bool = True) -> Case:
    x = torch.randn(2, 3, requires_grad=gradient)
    more = {"w": torch.randn(3), "spare": torch.randn(3)}
    return Case("call", "gradient", "sample", call, (x,), {"more": more}, gradient)


def faithful(target: Target) -> Target:
    return lambda *args, **kwargs: target(*args, **kwargs)


def off_by_one_bit(target: Target) -> Target:
    def called(*args: Any, **kwargs: Any) -> Any:
        output, nothing = target(*args, **kwargs)
        return output + (torch.nextafter(output, output + 1) - output).detach(), nothing

    return called


def transposed_in_memory(target: Target) -> Target:
    def called(*args: Any, **kwargs: Any) -> Any:
        output, nothing = target(*args, **kwargs)
        return output.t().contiguous().t(), nothing

    return called


def detached(target: Target) -> Target:
    return lambda *args, **kwargs: (target(*args, **kwargs)[0].detach(), None)


def zero_for_none(target: Target) -> Target:
    return lambda *args, **kwargs: (target(*args, **kwargs)[0], torch.zeros(()))


def list_for_tuple(target: Target) -> Target:
    return lambda *args, **kwargs: list(target(*args, **kwargs))


def draws_once_more(target: Target) -> Target:
    def called(*args: Any, **kwargs: Any) -> Any:
        output = target(*args, **kwargs)
        torch.rand(1)
        return output

    return called


def writes_to_argument(target: Target) -> Target:
    def called(x: torch.Tensor, more: dict[str, torch.Tensor]) -> Any:
        output = target(x, more)
        more["spare"].add_(1)
        return output

    return called


def frozen_random_numbers(target: Target) -> Target:
    drawn: list[Any] = []

    def called(*args: Any, **kwargs: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            drawn.append(target(*args, **kwargs))
        torch.rand(2, 3)
        return drawn[-1]

    return called


def doubled_gradient(target: Target) -> Target:
    def called(*args: Any, **kwargs: Any) -> Any:
        output, nothing = target(*args, **kwargs)
        return output + (output - output.detach()), nothing

    return called


def grad_mode_left_off(target: Target) -> Target:
    def called(*args: Any, **kwargs: Any) -> Any:
        output = target(*args, **kwargs)
        torch.set_default_dtype(torch.float64)
        return output

    return called


@pytest.mark.parametrize(
    ("jit", "detail"),
    [
        (off_by_one_bit, "values differ"),
        (transposed_in_memory, "stride"),
        (detached, "requires_grad"),
        (zero_for_none, "structure|NoneType"),
        (list_for_tuple, "structure"),
        (draws_once_more, "random stream"),
        (writes_to_argument, "arguments afterwards"),
        (frozen_random_numbers, "cached call, output"),
        (doubled_gradient, "gradients"),
        (grad_mode_left_off, "left behind.*float64"),
    ],
)
def test_judge_sees(jit: Jit, detail: str, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    verdict = judge(case(), jit)
    assert verdict.outcome is Outcome.WRONG, verdict
    with pytest.raises(AssertionError, match=detail):
        raise AssertionError(verdict.detail)


def test_judge_acquits_the_faithful() -> None:
    assert judge(case(), faithful).outcome is Outcome.EQUAL
    assert judge(case(gradient=False), faithful).outcome is Outcome.EQUAL


def test_tolerance_and_undefined_values() -> None:
    assert judge(case(), off_by_one_bit, Tolerance(1e-6, 0, "rounding")).outcome is Outcome.EQUAL
    assert judge(case(), off_by_one_bit, Undefined("chance")).outcome is Outcome.EQUAL
    assert judge(case(), transposed_in_memory, Undefined("chance")).outcome is Outcome.WRONG


def verdict_of(outcome: Outcome, error: str = "") -> Verdict:
    return Verdict(outcome, "call", "forward", "sample", error)


def test_refusals_are_held_to_the_letter() -> None:
    refused = verdict_of(Outcome.FELL_BACK, "DataDependent")
    equal = verdict_of(Outcome.EQUAL)
    whole, partly = Refusal(DataDependent, "reason"), Refusal(DataDependent, "reason", partly=True)
    assert not unexpected([equal, verdict_of(Outcome.SKIPPED)], None)
    assert not unexpected([refused], whole)
    assert not unexpected([refused, equal], partly)
    assert unexpected([refused], None)
    assert unexpected([equal], whole)
    assert unexpected([refused, equal], whole)
    assert unexpected([refused], partly)
    assert unexpected([verdict_of(Outcome.FELL_BACK, "Unsupported")], whole)
    assert unexpected([verdict_of(Outcome.WRONG), refused], partly)
