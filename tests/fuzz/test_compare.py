"""The comparison can fail: whatever a wrong jit gets wrong is seen, and eager itself is found equal to eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import switchgear as sg
from tests.fuzz import compare
from tests.fuzz.compare import Outcome, Script, Values, judge
from tests.fuzz.programs import Write

Function = Callable[..., Any]
Jit = Callable[[Function], Function]


def arguments() -> tuple[list[Any], list[Tensor]]:
    torch.manual_seed(7)
    leaf = torch.randn(3, 4, requires_grad=True)
    other = torch.randn(3, 4, requires_grad=True)
    buffer = torch.zeros(3, 4)
    return [leaf * 1, other, buffer], [leaf, other]


def function(x: Tensor, y: Tensor, buffer: Tensor) -> tuple[Tensor, ...]:
    buffer.add_(1)
    x.mul_(2)
    inner = torch.dropout(x * y, 0.5, True)
    return inner, inner.mT, inner, y, y[0], x.detach() > 0


def on_outputs(change: Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], tuple[Any, ...]]) -> Jit:
    """A jit that runs eager and changes what it returns; it sees the arguments too."""

    def jit(f: Function) -> Function:
        return lambda *args: change(f(*args), args)

    return jit


def replaced(place: int, make: Callable[[Tensor], Any]) -> Jit:
    return on_outputs(lambda outputs, _: (*outputs[:place], make(outputs[place]), *outputs[place + 1 :]))


def drops_a_write(f: Function) -> Function:
    return lambda x, y, buffer: f(x, y, buffer.clone())


def writes_behind_the_version_counter(f: Function) -> Function:
    def run(x: Tensor, y: Tensor, buffer: Tensor) -> Any:
        copy = buffer.clone()
        outputs = f(x, y, copy)
        buffer.data.copy_(copy)
        return outputs

    return run


def writes_to_a_non_leaf_without_its_history(f: Function) -> Function:
    def run(x: Tensor, y: Tensor, buffer: Tensor) -> Any:
        copy = x.clone()
        outputs = f(copy, y, buffer)
        with torch.no_grad():
            x.copy_(copy)
        return outputs

    return run


def draws_once_more(f: Function) -> Function:
    def run(*args: Any) -> Any:
        outputs = f(*args)
        torch.rand(1)
        return outputs

    return run


def wrong_from_the_second_call_on(f: Function) -> Function:
    calls = []

    def run(*args: Any) -> Any:
        calls.append(args)
        outputs = f(*args)
        return outputs if len(calls) == 1 else (outputs[0] * 1, *outputs[1:])

    return run


def fails(error: Exception) -> Jit:
    def jit(f: Function) -> Function:
        def run(*args: Any) -> Any:
            raise error

        return run

    return jit


def last_bit(x: Tensor) -> Tensor:
    return x + (torch.nextafter(x, torch.full_like(x, torch.inf)) - x).detach()


WRONG: dict[str, tuple[Jit, str]] = {
    "a dropped write": (drops_a_write, "argument 2: values"),
    "a write that no version counter shows": (writes_behind_the_version_counter, "argument 2: version has risen"),
    "a write without its history": (writes_to_a_non_leaf_without_its_history, "gradient of leaf 0"),
    "a copy for a view": (replaced(1, lambda x: x.clone()), "result[1]: in the memory of"),
    "other values": (replaced(5, lambda x: ~x), "result[5]: values"),
    "a last bit": (replaced(2, last_bit), "result[2]: values"),
    "another dtype": (replaced(5, lambda x: x.to(torch.uint8)), "result[5]: type"),
    "another shape": (replaced(4, lambda x: x[None]), "result[4]: type"),
    "a lost gradient": (replaced(0, lambda x: x.detach()), "result[0]: requires_grad"),
    "a gradient from nowhere": (replaced(5, lambda x: (x * 1.0).requires_grad_()), "result[5]: requires_grad"),
    "a leaf that is none": (replaced(0, lambda x: x.detach().requires_grad_()), "result[0]: is leaf"),
    "a zero gradient": (replaced(0, lambda x: x.detach() + x * 0), "gradient of leaf 0"),
    "one object as two": (replaced(2, lambda x: x.view_as(x)), "result[2]: same object as"),
    "two objects as one": (on_outputs(lambda o, _: (*o[:4], o[3], o[5])), "result[4]: same object as"),
    "an argument as a view of itself": (replaced(3, lambda y: y.view_as(y)), "result[3]: same object as"),
    "another view of the argument": (on_outputs(lambda o, args: (*o[:4], args[1][1], o[5])), "in the memory of"),
    "another structure": (on_outputs(lambda o, _: o[:-1]), "result: container"),
    "a number for a tensor": (replaced(5, lambda x: 3), "result[5]"),
    "one draw more": (draws_once_more, "random stream"),
    "a wrong second call": (wrong_from_the_second_call_on, "result[2]: same object as"),
    "an error": (fails(RuntimeError("no")), "call"),
    "a fault of ours": (fails(sg.errors.InvalidTrace("no")), "call"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_wrong_jit_gets_wrong_is_seen(name: str) -> None:
    jit, fact = WRONG[name]
    verdict = judge(Script(arguments, function), jit)
    assert verdict.outcome is Outcome.DIFFERENT
    assert fact in verdict.detail


def test_eager_is_equal_to_itself() -> None:
    for no_grad in (False, True):
        for slot in range(9):
            script = Script(arguments, function, write=Write(slot, no_grad))
            assert judge(script, lambda f: f).outcome is Outcome.EQUAL


def test_a_none_gradient_is_not_a_zero_gradient() -> None:
    def ignores_y(x: Tensor, y: Tensor, buffer: Tensor) -> Tensor:
        return x * 2

    def adds_zero(f: Function) -> Function:
        return lambda x, y, buffer: f(x, y, buffer) + y * 0

    verdict = judge(Script(arguments, ignores_y), adds_zero)
    assert "eager's None" in verdict.detail


def test_a_view_that_no_longer_hangs_together_is_seen_when_it_is_written_to() -> None:
    """Before the write, everything about the two tensors is equal: only history tells them apart."""

    def inner_and_view(x: Tensor, y: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
        inner = x * y
        return inner, inner.view(-1)

    def other_history(f: Function) -> Function:
        def run(*args: Any) -> Any:
            inner, view = f(*args)
            return inner, _SameValues.apply(inner, view)  # type: ignore[no-untyped-call]

        return run

    script = Script(arguments, inner_and_view, write=Write(1, no_grad=False))
    assert judge(script, lambda f: f).outcome is Outcome.EQUAL
    verdict = judge(script, other_history)
    assert verdict.outcome is Outcome.DIFFERENT


class _SameValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inner: Tensor, view: Tensor) -> Tensor:
        return inner.view(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.view(3, 4), None


def raises(x: Tensor, y: Tensor, buffer: Tensor) -> Tensor:
    return y.mul_(2)  # a leaf that requires grad


def test_an_error_of_eager_has_to_be_one_of_the_jitted_function_too() -> None:
    assert judge(Script(arguments, raises), lambda f: f).outcome is Outcome.BOTH_RAISE
    assert judge(Script(arguments, raises), fails(sg.errors.Unsupported("no"))).outcome is Outcome.FALLBACK
    assert judge(Script(arguments, raises), fails(IndexError("no"))).outcome is Outcome.DIFFERENT
    silent = judge(Script(arguments, raises), lambda f: lambda x, y, buffer: y * 2)
    assert silent.outcome is Outcome.DIFFERENT
    assert "only eager" in silent.kind


def test_a_sum_over_results_may_be_rounded_otherwise_and_no_gradient_of_a_result() -> None:
    def results(x: Tensor, y: Tensor, buffer: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x * 3, x.view_as(x) * 0.7

    def other_order(f: Function) -> Function:
        def run(x: Tensor, y: Tensor, buffer: Tensor) -> tuple[Tensor, ...]:
            last, second, first = x.view_as(x) * 0.7, x * 3, x * 2
            return first, second, last

        return run

    def off(f: Function) -> Function:
        def run(*args: Tensor) -> tuple[Tensor, ...]:
            one, two, three = f(*args)
            one.register_hook(lambda grad: grad * (1 + 2.0**-22))
            return one, two, three

        return run

    assert judge(Script(arguments, results), other_order).outcome is Outcome.EQUAL
    verdict = judge(Script(arguments, results), off)
    assert verdict.outcome is Outcome.DIFFERENT
    assert "by rounding only" in verdict.kind


def gradient_off_by(error: float, message: str) -> Jit:
    """A jit of a function of one result that warns as a fallback does."""

    class FallbackWarning(UserWarning):
        pass

    def jit(f: Function) -> Function:
        def run(*args: Tensor) -> Tensor:
            warnings.warn(message, FallbackWarning, stacklevel=1)
            result: Tensor = f(*args)
            result.register_hook(lambda grad: grad * (1 + error))
            return result

        return run

    return jit


def test_a_sum_over_results_may_cancel_otherwise() -> None:
    """The gradient of the sum is that of `x` beside one 1e12 times as large, which comes and goes."""

    def results(x: Tensor, y: Tensor, buffer: Tensor) -> tuple[Tensor, ...]:
        return (x - x) * 1e12, x * 1

    def other_order(f: Function) -> Function:
        def run(x: Tensor, y: Tensor, buffer: Tensor) -> tuple[Tensor, ...]:
            last = x * 1
            return (x - x) * 1e12, last

        return run

    assert judge(Script(arguments, results), other_order).outcome is Outcome.EQUAL


SPLIT = "f is split by TorchDynamo: no reason"


@pytest.mark.parametrize(
    ("error", "message", "outcome"),
    [
        (2.0**-22, SPLIT, Outcome.FALLBACK),
        (2.0**-18, SPLIT, Outcome.DIFFERENT),
        (2.0**-22, "f runs in eager: no reason", Outcome.DIFFERENT),
    ],
)
def test_gradients_of_a_split_function_alone_may_be_rounded_otherwise(
    error: float, message: str, outcome: Outcome
) -> None:
    def times(x: Tensor, y: Tensor, buffer: Tensor) -> Tensor:
        return x * y

    verdict = judge(Script(arguments, times), gradient_off_by(error, message))
    assert (verdict.outcome, verdict.rounded) == (outcome, error == 2.0**-22)


class Averaging(torch.nn.Module):
    """Its buffer has the history of all calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, *_: Tensor) -> None:
        w, mean = self.weight, self.get_buffer("mean")
        mean.mul_(0.3).add_(w.sin() * w + w.exp() * w, alpha=0.7)


class Made(Script):
    """A script of what its function makes."""

    def make(self) -> Function:
        """A new one."""
        made: Function = self.function()
        return made


def test_gradients_of_one_tensor_may_be_summed_call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Made(arguments, Averaging, ("same",) * 4)
    verdict = judge(script)
    assert verdict.outcome is Outcome.EQUAL, verdict.detail
    monkeypatch.setattr(compare, "_cut_off", lambda *_: None)
    assert judge(script).outcome is Outcome.DIFFERENT


def test_a_refusal_is_no_difference() -> None:
    verdict = judge(Script(arguments, function), fails(sg.errors.Unsupported("t12 is not for us")))
    assert (verdict.outcome, verdict.kind) == (Outcome.FALLBACK, "Unsupported: tN is not for us")


def test_a_call_that_runs_in_eager_is_a_fallback_if_it_is_equal() -> None:
    class FallbackWarning(UserWarning):
        pass

    def falls_back(f: Function) -> Function:
        def run(*args: Any) -> Any:
            warnings.warn("runs in eager", FallbackWarning, stacklevel=1)
            return f(*args)

        return run

    assert judge(Script(arguments, function), falls_back).outcome is Outcome.FALLBACK
    wrong = judge(Script(arguments, function), lambda f: falls_back(drops_a_write(f)))
    assert wrong.outcome is Outcome.DIFFERENT


def overwrites(x: Tensor, y: Tensor, buffer: Tensor) -> Tensor:
    inner = x.exp()
    inner.mul_(y.detach())
    return inner


def test_a_gradient_that_eager_refuses_is_not_compared() -> None:
    assert judge(Script(arguments, overwrites), lambda f: f).outcome is Outcome.EQUAL
    saved = judge(Script(arguments, overwrites), lambda f: lambda x, y, buffer: x.exp().mul(y.detach()))
    assert saved.outcome is Outcome.EQUAL


def test_values() -> None:
    nan, other = torch.tensor([torch.nan]), torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert Values.of(nan) == Values.of(other)
    assert Values.of(torch.tensor([0.0])) == Values.of(torch.tensor([-0.0]))
    assert Values.of(torch.tensor([1 + 2j]).conj()) == Values.of(torch.tensor([1 - 2j]))
    assert Values.of(torch.tensor([1])) != Values.of(torch.tensor([1], dtype=torch.int32))
    assert Values.of(torch.zeros(1)) != Values.of(torch.zeros(1, 1))


def picks(x: Tensor, at: Tensor) -> Tensor:
    x[at]
    return x * 2


def picks_for_its_result(x: Tensor, at: Tensor) -> Tensor:
    return x * 2 + x[at].sum()


def test_an_error_of_what_is_not_used_need_not_be_raised() -> None:
    def arguments() -> tuple[list[Any], list[Tensor]]:
        return [torch.ones(3), torch.tensor([7])], []

    for function in (picks, picks_for_its_result):
        assert judge(Script(arguments, function)).outcome is Outcome.BOTH_RAISE
    silent = judge(Script(arguments, picks_for_its_result), lambda f: lambda x, at: x * 2)
    assert silent.outcome is Outcome.DIFFERENT


def added_and_then_written(x: Tensor) -> Tensor:
    y = x + torch.cat((x,), 1)
    x.mul_(0.03)
    return torch.addcmul(x, y, y, value=0.5)


@pytest.mark.parametrize(
    ("make", "outcome"),
    [
        (lambda leaf: leaf.sin()[...], Outcome.EQUAL),
        (lambda leaf: leaf.mT.contiguous().mT.sin(), Outcome.EQUAL),
        (torch.sin, Outcome.DIFFERENT),
    ],
)
def test_gradients_of_a_view_that_is_written_to_are_summed_at_its_base(make: Function, outcome: Outcome) -> None:
    def arguments() -> tuple[list[Any], list[Tensor]]:
        leaf = torch.linspace(-2, 2, 12).view(3, 4).requires_grad_()
        return [make(leaf)], [leaf]

    def rounded(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Tensor) -> Any:
            x.register_hook(lambda grad: grad * (1 + 2.0**-22))
            return function(x)

        return run

    assert judge(Script(arguments, added_and_then_written), rounded).outcome is outcome


def read_by_a_region(x: Tensor) -> Tensor:
    return checkpoint(lambda: x.sin(), use_reentrant=False)  # type: ignore[no-any-return]


def read_by_no_region(x: Tensor) -> Tensor:
    return x.clone().sin()


@pytest.mark.parametrize(
    ("function", "outcome"), [(read_by_a_region, Outcome.EQUAL), (read_by_no_region, Outcome.DIFFERENT)]
)
def test_a_write_to_what_a_region_reads_again_may_be_refused(function: Callable[..., Any], outcome: Outcome) -> None:
    def arguments() -> tuple[list[Any], list[Tensor]]:
        leaf = torch.ones(3, requires_grad=True)
        return [leaf * 1], [leaf]

    def saving(_: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: x.sin()

    assert judge(Script(arguments, function, write=Write(1, no_grad=True)), saving).outcome is outcome
