"""First and second gradients of PyTorch's operators are what finite differences say, through `jit` as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from switchgear.errors import NotDifferentiable
from tests.databases import gradgrad
from tests.databases.gradgrad import MODES, REFUSED, examine_mode, faults, names
from tests.databases.operators import operators
from tests.databases.report import applies, unexpected
from tests.databases.verdict import Jit, Outcome, Target, Verdict, jit_on_data
from tests.under_test import part

CASES = [
    pytest.param(name, mode, marks=[pytest.mark.slow] if part(name, 48) else []) for name in names() for mode in MODES
]

_BELOW = "computes in less than double precision"
_DRAWN = "what is drawn has no gradient for PyTorch, though it moves with the mean"
_SPARSE = "the result is sparse"

#: What eager's own gradients do not pass, in which modes, and why: there is nothing to be held to.
FAILED_BY_EAGER: dict[str, tuple[tuple[str, ...], str]] = {
    "as_strided_scatter": (MODES[:1], "the gradient of what is overwritten comes out as one, not zero"),
    "bfloat16": (MODES, _BELOW),
    "cfloat": (MODES[:1], _BELOW),
    "chalf": (MODES, _BELOW),
    "float": (MODES[:1], _BELOW),
    "half": (MODES, _BELOW),
    "nn.functional.ctc_loss": (MODES[1:], "its backward has no derivative"),
    "normal": (MODES[:1], _DRAWN),
    "normal.number_mean": (MODES[:1], _DRAWN),
    "sparse.sampled_addmm": (MODES, _SPARSE),
}
if "2.13" <= torch.__version__ < "2.14":
    _STATISTICS = "the means and deviations that it returns have a gradient of zero"
    FAILED_BY_EAGER["native_group_norm"] = (MODES[:1], _STATISTICS)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_operator(name: str, mode: str) -> None:
    verdicts = examine_mode(name, mode, jit_on_data)
    found = unexpected(verdicts, applies(REFUSED.get(name), mode))
    assert not found, "\n".join(found)
    eager_fails = all(verdict.outcome is Outcome.SKIPPED for verdict in verdicts)
    assert eager_fails == (name in FAILED_BY_EAGER and mode in FAILED_BY_EAGER[name][0]), verdicts


def test_exceptions_name_operators_of_the_database() -> None:
    assert FAILED_BY_EAGER.keys() <= set(names())


def same(target: Target) -> Target:
    return target


def wrong_gradient(target: Target) -> Target:
    """The value is right: what is added is zero everywhere, but for autograd it has a slope."""
    return lambda x, *rest, **options: target(x, *rest, **options) + (x - x.detach())


def wrong_second_gradient(target: Target) -> Target:
    """Value and gradient are right: what is added is zero everywhere, but for autograd it is curved."""
    return lambda x, *rest, **options: target(x, *rest, **options) + (x - x.detach()).square()


def gradient_once(target: Target) -> Target:
    """The gradient is right, and knows nothing of what it was made from."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return target(x)  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                slope: torch.Tensor = torch.autograd.grad(target(x).sum(), x)[0]
            return grad * slope

    return Once.apply


def refusing(target: Target) -> Target:
    def called(*args: Any, **kwargs: Any) -> Any:
        raise NotDifferentiable("on principle")

    return called


def crashing(target: Target) -> Target:
    def called(*args: Any, **kwargs: Any) -> Any:
        raise IndexError("by accident")

    return called


def leaving_a_dtype_behind(target: Target) -> Target:
    def called(*args: Any, **kwargs: Any) -> Any:
        output = target(*args, **kwargs)
        torch.set_default_dtype(torch.float64)
        return output

    return called


@pytest.mark.parametrize(
    ("jit", "first", "second"),
    [
        (same, Outcome.EQUAL, Outcome.EQUAL),
        (wrong_gradient, Outcome.WRONG, Outcome.EQUAL),  # the second gradient is that of the wrong first one
        (wrong_second_gradient, Outcome.EQUAL, Outcome.WRONG),
        (gradient_once, Outcome.EQUAL, Outcome.WRONG),
        (refusing, Outcome.REFUSED, Outcome.REFUSED),
        (crashing, Outcome.CRASH, Outcome.CRASH),
        (leaving_a_dtype_behind, Outcome.WRONG, Outcome.WRONG),
    ],
)
def test_judge_sees(jit: Jit, first: Outcome, second: Outcome) -> None:
    for mode, outcome in zip(MODES, (first, second), strict=True):
        try:
            verdicts = examine_mode("sin", mode, jit)
        finally:
            torch.set_default_dtype(torch.float32)
        assert {verdict.outcome for verdict in verdicts} == {outcome}, verdicts


def test_random_operators_draw_the_same_in_every_call() -> None:
    for mode in MODES:
        verdicts = examine_mode("nn.functional.dropout", mode, same)
        assert {verdict.outcome for verdict in verdicts} == {Outcome.EQUAL}, verdicts


def test_samples_are_small_and_not_empty() -> None:
    for name in ("linalg.norm", "cumsum"):
        for size, check in gradgrad._checks(operators()[name], MODES[0]):
            assert size
            assert any(tensor.numel() for tensor in check.inputs)
        assert len(examine_mode(name, MODES[0], same)) == gradgrad.SAMPLES


def test_faults_are_named() -> None:
    def verdict(outcome: Outcome, name: str = "sin", error: str = "") -> Verdict:
        return Verdict(outcome, name, MODES[1], "sample", error)

    assert faults([verdict(Outcome.EQUAL), verdict(Outcome.SKIPPED)]) == []
    for outcome in (Outcome.REFUSED, Outcome.WRONG, Outcome.CRASH):
        assert faults([verdict(Outcome.EQUAL), verdict(outcome)]) == ["sin"]
    assert faults([verdict(Outcome.FELL_BACK, "sparse.sampled_addmm", "Unsupported")]) == []
    assert faults([verdict(Outcome.EQUAL, "sparse.sampled_addmm")]) == ["sparse.sampled_addmm"]
    assert faults([verdict(Outcome.FELL_BACK, "masked_select", "DataDependent")]) == ["masked_select"]
