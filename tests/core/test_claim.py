"""Claim: who runs a bound symbol, and who is named when it fails."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from switchgear.errors import ExecutorFailed, ExecutorUnavailable
from switchgear_runtime.last_call import compiler_of
from tests.core.training import Kernel, backward, choice, executor, forward, leaf, line_of, operators, owners, rules
from tests.oracle import assert_same, step

ADDMM, GELU = torch.ops.aten.addmm.default, torch.ops.aten.gelu.default


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)


def run(function: Any, *args: Any, executors: Any) -> Any:
    """The jitted function, called once with eager's result."""
    jitted = sg.jit(function, executors=executors)
    assert_same(jitted(*args), function(*args))
    return jitted


# Priority.


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_first_of_the_list_runs_it(order: tuple[str, ...]) -> None:
    kernels = {name: Kernel(torch.ops.aten.sin) for name in "abc"}
    made = {name: executor(name, {torch.sin: kernels[name]}) for name in "cab"}
    jitted = run(torch.sin, torch.ones(3), executors=[*(made[name] for name in order), "torch"])
    assert choice(jitted, "execution", "torch.sin").owner == order[0]
    assert [kernels[name].calls for name in order] == [1, 0, 0]


def test_torch_first_leaves_nothing_to_others() -> None:
    kernel = Kernel(torch.ops.aten.sin)
    run(torch.sin, torch.ones(3), executors=["torch", executor("fast", {torch.sin: kernel})])
    assert kernel.calls == 0


def test_name_and_object_are_one() -> None:
    for torch_executor in ("torch", *[e for e in compiler_of(sg.jit(linear)).selection.executors if e.name == "torch"]):
        jitted = run(linear, *inputs(), executors=[torch_executor])
        assert set(owners(jitted, "execution").values()) == {"torch"}


def test_everyone_who_declined_gave_a_reason() -> None:
    table = sg.Table("picky")
    table.implementation(torch.sin, lambda bound_symbol: "only on Sundays")(torch.sin)
    other = sg.Table("other")
    other.implementation(torch.sin, lambda bound_symbol: sg.Declined(f"not {bound_symbol.inputs[0].shape}"))(torch.sin)
    executors = [sg.Executor("picky", table=table), sg.Executor("other", table=other), executor("none"), "torch"]
    found = choice(run(torch.sin, torch.ones(3), executors=executors), "execution", "torch.sin")
    assert found.owner == "torch"
    assert found.declined == (
        ("picky", "only on Sundays"),
        ("other", "not (3,)"),
        ("none", "no implementation of torch.sin"),
    )


def of_size(size: int) -> Any:
    return lambda bound_symbol: bound_symbol.inputs[0].shape == (size,)


def test_checkers_are_asked_for_each_call() -> None:
    small, large = Kernel(torch.ops.aten.sin), Kernel(torch.ops.aten.sin)
    tables = {}
    for name, kernel, size in (("small", small, 2), ("large", large, 3)):
        table = tables[name] = sg.Table(name)
        table.implementation(torch.sin, of_size(size))(kernel)
    executors = [*(sg.Executor(name, table=table) for name, table in tables.items()), "torch"]
    jitted = run(lambda x, y: (torch.sin(x), torch.sin(y)), torch.ones(2), torch.ones(3), executors=executors)
    assert (small.calls, large.calls) == (1, 1)
    assert operators(forward(jitted)) == ["torch.sin", "torch.sin"]


def test_kernels_of_one_name_are_told_apart() -> None:
    def make(factor: float) -> Any:
        def fast(x: Tensor) -> Tensor:
            return x * factor

        return fast

    a, b = executor("a", {torch.sin: make(2)}), executor("b", {torch.cos: make(3)})
    got = sg.jit(lambda x: (torch.sin(x), torch.cos(x), torch.sin(x)), executors=[a, b, "torch"])(torch.ones(1))
    assert [tensor.item() for tensor in got] == [2, 3, 2]


@pytest.mark.parametrize(
    "spelling",
    [lambda x, y: x + y, torch.add, lambda x, y: x.add(y), lambda x, y: torch.add(input=x, other=y)],
)
def test_every_spelling_is_claimed(spelling: Any) -> None:
    kernel = Kernel(torch.ops.aten.add)
    fast = executor("fast", {torch.add: lambda input, other: kernel(input, other)})
    run(spelling, torch.ones(2), torch.ones(2), executors=[fast, "torch"])
    assert kernel.calls == 1


# Composites and leaves.


def test_leaf_is_claimed_inside_a_composite_that_nobody_takes() -> None:
    kernel = Kernel(ADDMM)
    jitted = run(linear, *inputs(), executors=[executor("fast", {ADDMM: kernel}), "torch"])
    assert kernel.calls == 1
    assert owners(jitted, "execution")["aten.addmm.default"] == "fast"


def test_composite_of_a_lower_executor_gives_way_to_a_part_of_a_higher() -> None:
    part, whole = Kernel(ADDMM), Kernel(F.linear)
    high, low = executor("high", {ADDMM: part}), executor("low", {F.linear: whole})
    jitted = run(linear, *inputs(), executors=[high, low, "torch"])
    assert (part.calls, whole.calls) == (1, 0)
    found = choice(jitted, "execution", "torch.nn.functional.linear")
    assert found.owner == "decomposition"
    assert ("low", "high, which comes before it, takes aten.addmm.default inside") in found.declined


def test_composite_of_a_higher_executor_is_whole() -> None:
    part, whole = Kernel(ADDMM), Kernel(F.linear)
    high, low = executor("high", {F.linear: whole}), executor("low", {ADDMM: part})
    jitted = run(linear, *inputs(), executors=[high, low, "torch"])
    assert (part.calls, whole.calls) == (0, 1)
    assert operators(forward(jitted)) == ["torch.nn.functional.linear"]


def test_part_deep_inside_and_part_that_its_checker_declines() -> None:
    def attention(x: Tensor, net: torch.nn.MultiheadAttention) -> Any:
        return net(x, x, x)[0]

    net = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval().requires_grad_(False)
    target = "torch.nn.functional.multi_head_attention_forward"
    whole = Kernel(F.multi_head_attention_forward)
    part = Kernel(ADDMM)
    x = torch.randn(2, 3, 4)
    low = executor("low", {target: whole})
    declining = sg.Table("declining")
    declining.implementation(ADDMM, lambda bound_symbol: "no")(part)
    jitted = sg.jit(net.train(), executors=[sg.Executor("declining", table=declining), low, "torch"])
    assert_same(jitted(x, x, x), net(x, x, x))
    assert (whole.calls, part.calls) == (1, 0)
    jitted = sg.jit(net, executors=[executor("high", {ADDMM: part, torch.ops.aten.mm.default: part}), low, "torch"])
    torch.testing.assert_close(jitted(x, x, x), net(x, x, x))
    names = operators(forward(jitted))
    assert (target in names) == (part.calls == 0)


def test_kept_forward_gives_way_in_training_too() -> None:
    part, whole = Kernel(GELU), Kernel(F.gelu)
    high, low = executor("high", {GELU: part}), executor("low", {F.gelu: whole})
    x = leaf(3)
    orders: list[tuple[list[Any], tuple[int, int]]]
    orders = [([high, low, "torch"], (1, 0)), ([low, high, "torch"], (1, 1))]
    for executors, calls in orders:
        assert_same(step(sg.jit(F.gelu, executors=executors), x), step(F.gelu, x))
        assert (part.calls, whole.calls) == calls


def test_backward_is_claimed_as_well() -> None:
    kernel = Kernel(torch.ops.aten.gelu_backward)
    fast = executor("fast", {torch.ops.aten.gelu_backward.default: kernel})
    x = leaf(3)
    jitted = sg.jit(lambda x: F.gelu(x), executors=[fast, "torch"])
    assert_same(step(jitted, x), step(F.gelu, x))
    assert kernel.calls == 1
    assert owners(jitted, "execution")["aten.gelu_backward.default"] == "fast"


def test_composite_that_a_rule_calls_in_the_backward_is_claimed_whole() -> None:
    kernel = Kernel(torch.ops.aten.softplus)
    table = rules(torch.sin, lambda x: (torch.sin(x), lambda grad: grad * F.softplus(x)))
    jitted = sg.jit(torch.sin, executors=[executor("fast", {F.softplus: kernel}), "torch"], grad_rules=table)
    x = leaf(3)
    assert_same(step(jitted, x)[1], [F.softplus(x.detach())])
    assert kernel.calls == 1
    assert "torch.nn.functional.softplus" in operators(backward(jitted))


@pytest.mark.parametrize(
    ("function", "written", "executed"),
    [
        (lambda x: 0.9**x, ["torch.Tensor.__rpow__"], ["aten.pow.Scalar"]),
        (lambda x: 1 - x, ["torch.Tensor.__rsub__"], ["aten.rsub.Scalar"]),
        (lambda x: 0.01 / x, ["torch.Tensor.__rtruediv__"], ["aten.reciprocal.default", "aten.mul.Tensor"]),
        (lambda x: F.softmax(x, 0), ["torch.nn.functional.softmax"], ["torch.softmax"]),
        (lambda x: F.layer_norm(x, (4,)), ["torch.nn.functional.layer_norm"], ["torch.layer_norm"]),
        (F.gelu, ["torch.nn.functional.gelu"], ["torch.nn.functional.gelu"]),
    ],
)
def test_composite_written_in_python_runs_as_what_it_calls(
    function: Any, written: list[str], executed: list[str]
) -> None:
    jitted = run(function, torch.rand(3, 4), executors=["torch"])
    assert (operators(sg.last_traces(jitted)[0]), operators(forward(jitted))) == (written, executed)


def test_every_executed_line_has_its_implementation_and_choice() -> None:
    jitted = sg.jit(linear, executors=[executor("fast", {ADDMM: Kernel(ADDMM)}), "torch"])
    x, w, b = inputs()
    step(jitted, x.requires_grad_(), w, b)
    for trace in (forward(jitted), backward(jitted)):
        for item in trace.bound_symbols:
            assert item.symbol.name == "del" or item.implementation is not None
    executed = [c for c in sg.last_choices(jitted) if c.kind == "execution" and c.owner != "decomposition"]
    assert len(executed) == len(operators(forward(jitted))) + len(operators(backward(jitted)))


# Nobody runs it.


def test_leaf_that_nobody_takes() -> None:
    def sine(x: Tensor) -> Tensor:
        return torch.sin(x)  # the user's line

    with pytest.raises(ExecutorUnavailable) as caught:
        sg.jit(sine, executors=[executor("fast", {torch.cos: torch.cos})])(torch.ones(3))
    for part in ("aten.sin.default", line_of(sine, "user's line"), "add 'torch' to the executors"):
        assert part in str(caught.value)


# It fails when it runs.


def boom(*args: Any, **kwargs: Any) -> Any:
    raise KeyError("boom")


def failing(x: Tensor) -> Tensor:
    y = torch.exp(x)
    z = F.gelu(y)  # the user's line
    return z.sum()


def test_failing_kernel_is_named() -> None:
    jitted = sg.jit(failing, executors=[executor("fast", {F.gelu: boom}), "torch"])
    for x in (torch.ones(3), leaf(3)):
        with pytest.raises(ExecutorFailed) as caught:
            jitted(x)
        for part in (
            "executor fast failed",
            "torch.nn.functional.gelu",
            line_of(failing, "user's line"),
            "KeyError: 'boom'",
            "leave fast out of executors",
        ):
            assert part in str(caught.value)
        assert isinstance(caught.value.__cause__, KeyError)


def test_failing_kernel_of_the_backward_is_named() -> None:
    fast = executor("fast", {torch.ops.aten.gelu_backward.default: boom})
    y = sg.jit(failing, executors=[fast, "torch"])(leaf(3))
    with pytest.raises(ExecutorFailed, match=r"fast failed in aten\.gelu_backward\.default, called at test_claim"):
        y.backward()


def test_one_failure_is_not_the_last_word() -> None:
    answers: list[Any] = [boom]
    jitted = sg.jit(failing, executors=[executor("fast", {F.gelu: lambda x: answers[-1](x)}), "torch"])
    with pytest.raises(ExecutorFailed):
        jitted(torch.ones(3))
    answers.append(GELU)
    assert_same(jitted(torch.ones(3)), failing(torch.ones(3)))
    assert torch.is_grad_enabled()


def test_where_pytorch_raises_too_the_failure_of_a_kernel_is_eagers() -> None:
    def lookup(index: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(index, weight)

    def strict(index: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Tensor:
        if index.max() >= len(weight):
            raise ValueError("no such row")
        return weight[index]

    weight = torch.randn(3, 2)
    jitted = sg.jit(lookup, executors=[executor("fast", {F.embedding: strict}), "torch"])
    for _ in range(2):
        with pytest.raises(IndexError, match="index out of range in self") as caught:
            jitted(torch.tensor([7]), weight)
        assert isinstance(caught.value.__cause__, ValueError)
        assert_same(jitted(torch.tensor([1]), weight), lookup(torch.tensor([1]), weight))


def test_failures_of_pytorch_are_eagers() -> None:
    def lookup(index: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(index, weight)

    index, weight = torch.tensor([7]), torch.randn(3, 2)
    errors = []
    for function in (lookup, sg.jit(lookup, executors=[executor("fast", {F.gelu: boom}), "torch"])):
        with pytest.raises(IndexError) as caught:
            function(index, weight)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_kernel_that_interrupts_is_not_swallowed() -> None:
    def interrupt(*args: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sg.jit(failing, executors=[executor("fast", {F.gelu: interrupt}), "torch"])(torch.ones(3))


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (lambda x: x.sum(), r"its result has shape \(\), expected \(3, 4\)"),
        (lambda x: x.double(), "its result has dtype torch.float64, expected torch.float32"),
        (lambda x: None, "its result is NoneType, not a tensor"),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_what_an_implementation_returns_is_checked_when_it_first_runs(
    result: Callable[[torch.Tensor], Any], fault: str, grad: bool
) -> None:
    table = sg.Table("bad")
    table.implementation(torch.sin)(result)
    jitted = sg.jit(lambda x: torch.sin(x) * 2, executors=[sg.Executor("bad", table=table), "torch"])
    for _ in range(2):
        with pytest.raises(ExecutorFailed, match=rf"bad failed in torch\.sin, called at test_claim.*{fault}"):
            jitted(torch.randn(3, 4, requires_grad=grad))
