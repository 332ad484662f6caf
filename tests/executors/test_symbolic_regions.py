"""Inductor's regions of symbolic sizes: compiled once for all sizes, and as near to eager as those of fixed ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from switchgear_inductor import InductorExecutor
from switchgear_inductor.executor import _internals
from switchgear_inductor.variants import LIMIT, Compiled, Variants
from tests.core.against_eager import numbers
from tests.core.training import forward, lines
from tests.databases.verdict import Case, Outcome, judge
from tests.executors.test_inductor import gpt2, llama
from tests.oracle import Fused, differences
from tests.test_symbolic_sizes import LENGTHS, ON_ROWS, WORKLOADS, entries, rows

pytestmark = [
    pytest.mark.skipif(
        InductorExecutor().unavailable() is not None, reason="no C++ compiler here, which Inductor needs"
    ),
    # importing Inductor uses what PyTorch deprecates
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]

Compilations = list[tuple[str, tuple[int, ...]]]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    """The regions that are compiled, by name, and the sizes for which."""
    internals = _internals()  # imported without what it warns of

    found: Compilations = []
    original = internals.compile_region

    def counted(region: Any, sizes: Sequence[int], options: Any) -> Any:
        found.append((region.name, tuple(sizes)))
        return original(region, sizes, options)

    monkeypatch.setattr(internals, "compile_region", counted)
    return found


def dynamic(function: Any, marks: Any = True) -> Any:
    return sg.jit(function, executors=[InductorExecutor(), "torch"], dynamic=marks, recompile_limit=100)


def check(function: Callable[..., Any], calls: Sequence[Sequence[Any]], compiled: Compilations) -> Any:
    """Make the calls through one jitted function and compare; what is compiled in the first call serves them all."""
    jitted = dynamic(function)
    counts = []
    for args in calls:
        gradient = any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in args)
        case = Case("function", "", str([arg.shape for arg in args]), function, args, {}, gradient)
        verdict = judge(case, lambda _: jitted, Fused())
        assert verdict.outcome is Outcome.EQUAL, f"{verdict.sample}: {verdict.error} {verdict.detail}"
        counts.append(len(compiled))
    assert entries(jitted) == 1
    assert counts == [counts[0]] * len(counts)
    assert len({name for name, _ in compiled}) == len(compiled)
    return jitted


FUSED = {name: WORKLOADS[name] for name in ("norm chain", "rms norm", "cross entropy", "embedding", "indexing")}
FUSED_ON_ROWS = [
    "a factory",
    "cat, stack and repeat",
    "checkpoint",
    "cumulative",
    "expand",
    "a gradient inside",
    "random numbers",
    "reductions",
    "roll and flip",
    "sort and topk",
    "an autograd.Function",
    "vmap",
    "a write to a result",
]


@pytest.mark.parametrize(
    "name", ["norm chain", *[pytest.param(name, marks=pytest.mark.slow) for name in FUSED if name != "norm chain"]]
)
def test_a_workload_is_compiled_once(name: str, compiled: Compilations) -> None:
    check(*FUSED[name], compiled)
    assert compiled


@pytest.mark.slow
@pytest.mark.parametrize("name", FUSED_ON_ROWS)
def test_a_region_serves_every_number_of_rows(name: str, compiled: Compilations) -> None:
    check(ON_ROWS[name], rows(), compiled)
    assert compiled


def trained(called: Any, model: nn.Module, seed: int, **inputs: Any) -> list[Any]:
    """The loss and the gradients of the parameters."""
    model.zero_grad()
    torch.manual_seed(seed)
    loss = called(**inputs)
    loss = loss if isinstance(loss, Tensor) else loss.loss
    loss.backward()
    return [loss.detach(), *[parameter.grad for parameter in model.parameters()]]


def check_training(
    model: nn.Module, calls: Sequence[dict[str, Tensor]], marks: Any, compiled: Compilations, special: int = 0
) -> None:
    """The same for a model that gives a loss; `special` calls at the end may compile an entry more."""
    double = copy.deepcopy(model).double()
    jitted = dynamic(model, marks)
    for index, inputs in enumerate(calls):
        wide = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
        exact = trained(double, double, index, **wide)
        expected, found = (trained(called, model, index, **inputs) for called in (model, jitted))
        assert not [*differences(expected, found, f"call {index}", Fused(), exact)]
        if index < len(calls) - special:
            assert entries(jitted) == 1
            assert {sizes for _, sizes in compiled} == {compiled[0][1]}
            assert len({name for name, _ in compiled}) == len(compiled)
    assert entries(jitted) == 1 + bool(special)
    assert any(name.startswith("inductor_backward") for name, _ in compiled)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return (y * 2).square().mean()


def test_a_perceptron_by_batch(compiled: Compilations) -> None:
    torch.manual_seed(0)
    calls = [{"x": torch.randn(length, 8)} for length in (*LENGTHS, 64, 100, 1000)]
    check_training(Perceptron(), calls, {"x": {0}}, compiled)


@pytest.mark.parametrize("make", [gpt2, pytest.param(llama, marks=pytest.mark.slow)])
def test_a_language_model_is_compiled_once_for_all_lengths(make: Any, compiled: Compilations) -> None:
    torch.manual_seed(0)
    calls = [torch.randint(0, 60, (3, length)) for length in (7, 9, 12, 5, 20, 3, 2, 32, 16, 31)]
    marks = {"input_ids": {1}, "labels": {1}}
    check_training(make(), [{"input_ids": ids, "labels": ids} for ids in calls], marks, compiled)


@pytest.mark.slow
def test_a_language_model_is_compiled_once_more_for_a_length_of_one(compiled: Compilations) -> None:
    torch.manual_seed(0)
    calls = [torch.randint(0, 60, (3, length)) for length in (7, 9, 1, 12, 1)]
    marks = {"input_ids": {1}, "labels": {1}}
    check_training(gpt2(), [{"input_ids": ids, "labels": ids} for ids in calls], marks, compiled, special=3)


def scaled(x: Tensor, y: Tensor) -> Tensor:
    first = F.dropout(x.sin() * x.shape[0] + 1, 0.5)
    second = F.dropout(first.sin() * x.shape[1] + 1, 0.5)
    return second.cos() * y.sum() + y.shape[1]


def test_sizes_that_are_equal_at_first_are_not_taken_for_equal(compiled: Compilations) -> None:
    sizes = [((4, 4), (4, 4)), ((3, 5), (2, 7)), ((16, 8), (8, 8)), ((17, 33), (64, 3))]
    calls = [[numbers(*one, grad=True), numbers(*two, grad=True)] for one, two in sizes]
    check(scaled, calls, compiled)


def test_what_inductor_decides_by_a_size_is_checked_in_every_call(compiled: Compilations) -> None:
    """A reduction of few elements is compiled in another way than one of many."""

    def function(x: Tensor) -> Tensor:
        return (x.sin() * 2 + 1).sum()

    for _ in range(2):  # the second time from Inductor's own cache
        compiled.clear()
        jitted = dynamic(function)
        for length in (3, 5000, 4, 1024, 1025, 9000):
            x = torch.randn(length, 4)
            exact = function(x.double())
            assert not [*differences(function(x), jitted(x), f"{length}", Fused(), exact)]
        assert entries(jitted) == 1
        assert [sizes for _, sizes in compiled] == [(3, 4), (5000, 4)]


def test_a_backward_for_grad_outputs_of_other_strides_compiles_no_region(compiled: Compilations) -> None:
    jitted = dynamic(lambda x: (x * x).sin())
    counts = set()
    for length in (*LENGTHS, *LENGTHS):
        x, y = numbers(length, 4, grad=True), numbers(length, 4, grad=True)
        grad = numbers(4, length).t()
        jitted(x).backward(grad)
        (y * y).sin().backward(grad)
        torch.testing.assert_close(x.grad, y.grad, check_stride=True)
        counts.add(len(compiled))
    assert counts == {1}


def test_regions_that_are_alike_are_compiled_once(compiled: Compilations) -> None:
    def layers(a: Tensor) -> Tensor:
        for _ in range(5):
            a = F.dropout(F.gelu(a) * a.shape[0] + 1, 0.0001)
        return a

    jitted = dynamic(layers)
    for length in LENGTHS:
        jitted(numbers(length, 4))
    assert len([item for item in lines(forward(jitted)) if item.subsymbols]) > 4
    assert len(compiled) == 3  # the first, those between, and the last


def test_a_tensor_of_other_strides_than_the_trace_says_is_read_as_it_is() -> None:
    jitted = dynamic(lambda x: (x.sin() * 2).cos())
    x = numbers(3, 4)
    jitted(x)
    (line,) = [item for item in lines(forward(jitted)) if item.subsymbols]
    assert line.implementation is not None
    (found,) = line.implementation.fn([3, 4, x.t().contiguous().t()])
    torch.testing.assert_close(found, (x.sin() * 2).cos())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode: Any) -> None:
    jitted = dynamic(lambda x: (x.t().sin() * 2).softmax(-1) + x.shape[1])
    for length in LENGTHS:
        with mode():
            x = numbers(length, 4)
            wanted = (x.t().sin() * 2).softmax(-1) + 4
            torch.testing.assert_close(jitted(x), wanted, check_stride=True)
    assert entries(jitted) == 1


def test_where_inductor_fails_pytorch_runs_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    internals = _internals()  # imported without what it warns of

    def fail(region: Any, sizes: Sequence[int], options: Any) -> Any:
        raise RuntimeError("CppCompileError\nmuch more")

    monkeypatch.setattr(internals, "compile_region", fail)
    jitted = dynamic(lambda x: (x.sin() * x.shape[0]).exp())
    with pytest.warns(sg.errors.PluginWarning, match=r"PyTorch runs instead \(aten.sin.default, .*CppC") as caught:
        results = [jitted(numbers(length, 4)) for length in LENGTHS]
    assert len(caught) == 1
    for length, found in zip(LENGTHS, results, strict=True):
        assert torch.equal(found, (numbers(length, 4).sin() * length).exp())


def test_a_region_is_compiled_for_so_many_sizes_and_no_more() -> None:
    found: list[int] = []

    def compile(sizes: Sequence[int]) -> Compiled:
        (size,) = sizes
        found.append(size)
        return Compiled(lambda args: ("compiled", *args), lambda other: other == size)

    run = Variants(compile, lambda args: ("PyTorch", *args), 1)
    for size in [*range(LIMIT), *range(LIMIT)]:
        assert run([size, "x"]) == ("compiled", size, "x")
    assert found == [*range(LIMIT)]
    with pytest.warns(sg.errors.PluginWarning, match="PyTorch runs it for all others"):
        assert run([LIMIT, "x"]) == ("PyTorch", LIMIT, "x")
    assert run([LIMIT + 1, "x"]) == ("PyTorch", LIMIT + 1, "x")
    assert run([0, "x"]) == ("compiled", 0, "x")
