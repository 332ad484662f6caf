"""The comparison can fail: whatever a wrong jit gets wrong is seen, and eager itself is found equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.fuzz.compare import Bits, Jit, Outcome, judge
from tests.fuzz.processes import over_processes
from tests.fuzz.programs import Write
from tests.fuzz.search import Finding, examine, shrink
from tests.fuzz.source import Script

Function = Callable[..., Any]


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


def replaced(place: int, make: Callable[[Tensor], Tensor]) -> Jit:
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


def other_strides(x: Tensor) -> Tensor:
    return x.mT.clone(memory_format=torch.contiguous_format).mT


def elsewhere_in_memory(x: Tensor) -> Tensor:
    return (
        x.as_strided(x.shape, x.stride(), x.storage_offset())
        .detach()
        .clone()
        .set_(torch.cat([torch.zeros(4, dtype=torch.bool), x.flatten()]).untyped_storage(), 4, x.shape, x.stride())
    )


WRONG: dict[str, tuple[Jit, str]] = {
    "a dropped write": (drops_a_write, "argument 2: values"),
    "a write that no version counter shows": (writes_behind_the_version_counter, "argument 2: version has risen"),
    "a write without its history": (writes_to_a_non_leaf_without_its_history, "gradient of leaf 0: values"),
    "a copy for a view": (replaced(1, lambda x: x.clone(memory_format=torch.preserve_format)), "output 1: base"),
    "a view of a copy": (replaced(1, lambda x: x.mT.clone().mT), "output 1: shares storage with"),
    "other values": (replaced(5, lambda x: ~x), "output 5: values"),
    "a last bit": (replaced(2, last_bit), "output 2: values"),
    "another dtype": (replaced(5, lambda x: x.to(torch.uint8)), "output 5: dtype"),
    "another shape": (replaced(4, lambda x: x[None]), "output 4: shape"),
    "other strides": (replaced(0, other_strides), "output 0: stride"),
    "another offset": (replaced(5, elsewhere_in_memory), "output 5: offset"),
    "a lost gradient": (replaced(0, lambda x: x.detach()), "output 0: requires_grad"),
    "a gradient from nowhere": (replaced(5, lambda x: (x * 1.0).requires_grad_()), "output 5: requires_grad"),
    "a zero gradient": (replaced(0, lambda x: x.detach() + x * 0), "gradient of leaf 0: values"),
    "one object as two": (replaced(2, lambda x: x.view_as(x)), "output 2: same object as"),
    "two objects as one": (on_outputs(lambda o, _: (o[0], o[0].mT, *o[2:4], o[3], o[5])), "output 4: shape"),
    "an argument as a view of itself": (replaced(3, lambda y: y.view_as(y)), "output 3: same object as"),
    "another view of the argument": (on_outputs(lambda o, args: (*o[:4], args[1][1], o[5])), "output 4: offset"),
    "another structure": (on_outputs(lambda o, _: o[:-1]), "structure"),
    "one draw more": (draws_once_more, "random stream"),
    "a wrong second call": (wrong_from_the_second_call_on, "output 2: same object as"),
    "an error": (fails(RuntimeError("no")), "call"),
    "a fault of ours": (fails(sg.errors.InvalidTrace("no")), "call"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_wrong_jit_gets_wrong_is_seen(name: str) -> None:
    jit, fact = WRONG[name]
    verdict = judge(Script(arguments, function), jit)
    assert verdict.outcome is Outcome.DIFFERENT
    assert f": {fact}: is" in verdict.detail


def test_eager_is_equal_to_itself() -> None:
    for how in ("mul_", "no_grad", "row"):
        for slot in range(9):
            script = Script(arguments, function, ("same", "distinct", "no_grad", "detached"), 0, Write(slot, how))
            assert judge(script, lambda f: f).outcome is Outcome.EQUAL


def test_a_none_gradient_is_not_a_zero_gradient() -> None:
    def ignores_y(x: Tensor, y: Tensor, buffer: Tensor) -> Tensor:
        return x * 2

    def adds_zero(f: Function) -> Function:
        return lambda x, y, buffer: f(x, y, buffer) + y * 0

    verdict = judge(Script(arguments, ignores_y), adds_zero)
    assert "gradient of leaf 1: is None: is False, eager's True" in verdict.detail


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

    assert judge(Script(arguments, inner_and_view, write=Write(0, "mul_")), lambda f: f).outcome is Outcome.EQUAL
    verdict = judge(Script(arguments, inner_and_view, write=Write(0, "mul_")), other_history)
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
    assert judge(Script(arguments, raises), fails(sg.errors.Unsupported("no"))).outcome is Outcome.BOTH_RAISE
    assert judge(Script(arguments, raises), fails(IndexError("no"))).outcome is Outcome.DIFFERENT
    silent = judge(Script(arguments, raises), lambda f: lambda x, y, buffer: y * 2)
    assert silent.outcome is Outcome.DIFFERENT
    assert "only eager" in silent.kind


def test_rounding_is_excused_only_where_gradients_flow_around() -> None:
    def viewed(x: Tensor, y: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.view_as(x)

    def scaled(x: Tensor, y: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x * 3

    def seen(x: Tensor, y: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return y * 2, y * 3

    def unseen(x: Tensor, y: Tensor, buffer: Tensor) -> tuple[Tensor, Tensor]:
        x.detach().mul_(2)
        return y * 2, y * 3

    def with_a_view() -> tuple[list[Any], list[Tensor]]:
        (x, _, buffer), leaves = arguments()
        return [x, x.view_as(x), buffer], leaves

    def off(f: Function) -> Function:
        def inexact(*args: Tensor) -> tuple[Tensor, Tensor]:
            one, other = f(*args)
            if one.requires_grad:
                one.register_hook(lambda grad: grad * (1 + 2.0**-20))
            return one, other

        return inexact

    assert judge(Script(arguments, viewed), off).outcome is Outcome.EXCEPTED
    assert judge(Script(arguments, scaled), off).outcome is Outcome.DIFFERENT
    assert judge(Script(arguments, seen), off).outcome is Outcome.DIFFERENT
    assert judge(Script(arguments, unseen), off).outcome is Outcome.EXCEPTED
    assert judge(Script(with_a_view, scaled), off).outcome is Outcome.DIFFERENT
    assert judge(Script(with_a_view, seen), off).outcome is Outcome.EXCEPTED


def test_a_refusal_is_no_difference() -> None:
    verdict = judge(Script(arguments, function), fails(sg.errors.Unsupported("t12 is not for us")))
    assert (verdict.outcome, verdict.kind) == (Outcome.REFUSED, "Unsupported: tN is not for us")


def overwrites(x: Tensor, y: Tensor, buffer: Tensor) -> Tensor:
    inner = x.exp()
    inner.mul_(y.detach())
    return inner


def test_a_gradient_that_eager_refuses_is_compared_with_that_of_an_eager_that_saves_copies() -> None:
    def exact(f: Function) -> Function:
        return lambda x, y, buffer: x.exp().mul(y.detach())

    def inexact(f: Function) -> Function:
        return lambda x, y, buffer: x.exp().mul(y.detach()).detach() + 0 * x

    assert judge(Script(arguments, overwrites), lambda f: f).outcome is Outcome.EQUAL  # both refuse to differentiate
    assert judge(Script(arguments, overwrites), exact).outcome is Outcome.OVERWRITTEN
    assert judge(Script(arguments, overwrites), inexact).outcome is Outcome.DIFFERENT


def test_bits() -> None:
    nan, other = torch.tensor([torch.nan]), torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert Bits.of(nan) == Bits.of(other)
    assert Bits.of(torch.tensor([0.0])) != Bits.of(torch.tensor([-0.0]))
    assert Bits.of(torch.tensor([1 + 0j])) != Bits.of(torch.tensor([1 - 0j]).conj().conj().resolve_conj() * -1)
    assert Bits.of(torch.tensor([1 + 2j]).conj()) == Bits.of(torch.tensor([1 - 2j]))
    assert Bits.of(torch.tensor([1])) != Bits.of(torch.tensor([1], dtype=torch.int32))


def test_a_seed_draws_the_same_programs_and_a_difference_is_shrunk() -> None:
    # in a process of its own: hypothesis draws constants from whatever modules are imported
    ((_, drawn),) = over_processes(_drawn_and_shrunk, [()], 1)
    assert drawn is not None
    findings, again, shrunk = drawn
    assert findings == again
    assert any(finding.verdict.outcome is Outcome.DIFFERENT for finding in findings)
    assert shrunk is not None
    assert shrunk.steps == 1
    assert " * " in shrunk.text


def _drawn_and_shrunk() -> tuple[list[Finding], list[Finding], Finding | None]:
    findings = examine(3, 15, _adds_for_times)
    different = [finding for finding in findings if finding.verdict.outcome is Outcome.DIFFERENT]
    return findings, examine(3, 15, _adds_for_times), shrink(3, 15, different[0].verdict.kind, _adds_for_times)


def _adds_for_times(f: Function) -> Function:
    def run(*args: Any) -> Any:
        with _AddForTimes():
            return f(*args)

    return run


class _AddForTimes(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (torch.add if func in (Tensor.mul, Tensor.__mul__) else func)(*args, **(kwargs or {}))
