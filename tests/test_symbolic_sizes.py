"""Sizes that are not known when a function is compiled: one entry for all of them, and eager's results to the bit."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers

import switchgear as sg
from switchgear_core.errors import (
    ExecutorUnavailable,
    InvalidInput,
    PluginWarning,
    RecompileWarning,
    Unsupported,
    warn_once,
)
from switchgear_runtime import backwards
from switchgear_runtime.last_call import compiler_of, last_entry
from tests.core.against_eager import numbers
from tests.databases.verdict import Case, Outcome, judge
from tests.oracle import differences

T = torch.Tensor
LENGTHS = (3, 5, 8, 2, 13)
PAIRS = tuple(zip(LENGTHS, (4, 7, 2, 9, 3), strict=True))


def entries(jitted: Any) -> int:
    """How many entries were compiled, and are kept."""
    return len(compiler_of(jitted).cache._order)


def dynamic(function: Callable[..., Any], marks: Any = True, **options: Any) -> Any:
    return sg.jit(function, executors=["torch"], dynamic=marks, recompile_limit=100, **options)


def check(function: Callable[..., Any], calls: Iterable[Sequence[Any]], compiled: int = 1, marks: Any = True) -> Any:
    """Make the calls one after another through one jitted function, each twice, and compare with eager to the bit.

    `compiled` is how many entries there may be in the end.
    """
    jitted = dynamic(function, marks)
    for args in calls:
        gradient = any(isinstance(leaf, T) and leaf.requires_grad for leaf in args)
        verdict = judge(Case("function", "", str(args), function, args, {}, gradient), lambda _: jitted)
        assert verdict.outcome is Outcome.EQUAL, f"{verdict.sample}: {verdict.error} {verdict.detail}"
    assert entries(jitted) == compiled
    return jitted


def rows(*more: int) -> list[list[T]]:
    return [[numbers(length, *(more or (4,)), grad=True)] for length in LENGTHS]


def grids(last: int = 4) -> list[list[T]]:
    return [[numbers(one, other, last, grad=True)] for one, other in PAIRS]


# -- one entry for all sizes -------------------------------------------------------------------------------------------


def test_a_function_may_ask_for_types_where_no_integer_among_the_arguments_is_symbolic() -> None:
    check(lambda x: x * 2 if type(x) is T else x, rows())


def test_a_function_and_its_gradient_print_with_sizes_and_run() -> None:
    jitted = check(lambda x: (x * 2).reshape(x.numel()).sum(), rows())
    forward, backward = sg.last_traces(jitted)[-1], sg.last_backward_traces(jitted)[-1]
    assert "s0 = t_0.size(0)\n    s1 = t_0.size(1)\n" in forward.python()
    assert "[s0*s1]" in forward.python()
    assert "def backward(s0, s1, g_" in backward.python()
    assert backward.numbers == (sg.passes.NumberProxy("s0"), sg.passes.NumberProxy("s1"))
    x = numbers(6, 4)
    assert torch.equal(sg.last_traces(jitted)[0].function()(x)[0], (x * 2).sum())
    (grad,) = backward.function()(6, 4, torch.tensor(3.0, dtype=torch.float64))
    assert torch.equal(grad, torch.full((6, 4), 6.0, dtype=torch.float64))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.count = x.shape[0]
        ctx.save_for_backward(x)
        return x.sin() * x.shape[0]

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        (x,) = ctx.saved_tensors
        scaled: T = grad * x.cos() * ctx.count
        return scaled


def set_first(x: T) -> T:
    y = x.clone()
    y[..., 0] = 3.0
    return y * x


ON_ROWS: dict[str, Callable[[T], Any]] = {
    "a size among the operands": lambda x: x / x.shape[0],
    "a factory": lambda x: x + torch.arange(x.shape[0])[:, None] + torch.zeros(x.shape[0], 1),
    "random numbers": lambda x: F.dropout(x, 0.3) + torch.rand(x.shape) + torch.randn_like(x),
    "views of an input": lambda x: (x[1:], x.view(-1), x.t(), x),
    "views of a result": lambda x: (lambda y: (y.view(-1), y[: x.shape[0] // 2]))(x * 2),
    "reshape and permute": lambda x: x.reshape(x.shape[0] * 2, 2).permute(1, 0).reshape(-1),
    "expand": lambda x: x[:1].expand(x.shape[0], 4) + 1,
    "chunk": lambda x: x.chunk(2),
    "cat, stack and repeat": lambda x: torch.cat([x, torch.stack([x, x]).flatten(0, 1), x.repeat(2, 1)]),
    "sort and topk": lambda x: (x.sort(0), x.topk(2, 0)),
    "reductions": lambda x: x.norm() + x.std(1).sum() + x.mean() + x.logsumexp(1).sum(),
    "cumulative": lambda x: x.masked_fill(torch.ones(x.shape[0], 4, dtype=torch.bool).triu(), 0.0).cumsum(0),
    "padding": lambda x: F.pad(x, (0, 0, 1, 2)),
    "roll and flip": lambda x: x.roll(1, 0).flip(0),
    "a write to a result": set_first,
    "a gradient inside": lambda x: torch.autograd.grad(x.sin().sum(), x)[0] * x.shape[0],
    "a functional gradient": lambda x: torch.func.grad(lambda y: (y.sin() * y.shape[0]).sum())(x),
    "vmap": lambda x: torch.func.vmap(lambda row: (row * 2).sum())(x),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(
        lambda y: (y.sin() @ y.t()).relu(), x, use_reentrant=False
    ),
    "an autograd.Function": lambda x: Scaled.apply(x).sin(),  # type: ignore[no-untyped-call]
    "a truth of constants": lambda x: x * 2 if (torch.arange(x.shape[0]) >= 0).all() else x,
}


@pytest.mark.parametrize("name", ON_ROWS)
def test_one_entry_serves_every_number_of_rows(name: str) -> None:
    check(ON_ROWS[name], rows())


def attention(q: T, k: T, v: T) -> T:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def norm_chain(x: T, weight: T, bias: T) -> T:
    chain: T = F.gelu(F.layer_norm(x, (4,), weight, bias)) * torch.sigmoid(x) + x
    return chain


def rms_norm(x: T, weight: T) -> T:
    scaled: T = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    return scaled


def cross_entropy(x: T, target: T) -> T:
    return F.cross_entropy(x.view(-1, x.shape[-1]), target.view(-1), ignore_index=3)


def indices(*shape: int) -> T:
    return (torch.arange(math.prod(shape)) * 5 % 7).reshape(shape)


WORKLOADS: dict[str, tuple[Callable[..., Any], list[list[T]]]] = {
    "attention": (attention, [[numbers(2, 2, n, 8, grad=True)] * 3 for n in LENGTHS]),
    "norm chain": (norm_chain, [[x, numbers(4, grad=True), numbers(4, grad=True)] for (x,) in grids()]),
    "rms norm": (rms_norm, [[x, numbers(4, grad=True)] for (x,) in grids()]),
    "cross entropy": (cross_entropy, [[numbers(n, m, 7, grad=True), indices(n, m)] for n, m in PAIRS]),
    "embedding": (
        lambda i, w: F.embedding(i, w).mean(1),
        [[indices(n, m), numbers(7, 4, grad=True)] for n, m in PAIRS],
    ),
    "matmul": (lambda x, y: torch.matmul(x, y.transpose(-1, -2)), [[x, x.detach() * 2] for (x,) in grids()]),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), [[x, x * 2] for (x,) in grids()]),
    "indexing": (lambda x, i: x[i], [[x, indices(5) % 2] for (x,) in rows()]),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_one_entry_serves_a_workload(name: str) -> None:
    check(WORKLOADS[name][0], WORKLOADS[name][1])


@pytest.mark.parametrize(
    ("is_training", "compilations", "arguments"),
    [
        (True, 2, {}),
        (True, 2, {"num_layers": 2, "bidirectional": True}),
        (False, 2, {"num_layers": 2, "dropout": 0.5}),
        (True, len(LENGTHS), {"num_layers": 2, "dropout": 0.5}),
    ],
    ids=["plain", "bidirectional", "dropout that does nothing", "dropout"],
)
def test_an_lstm_is_compiled_once_for_all_lengths(is_training: bool, compilations: int, arguments: Any) -> None:
    """And as in eager; with dropout between its layers, once per length."""
    network = torch.nn.LSTM(4, 8, batch_first=True, **arguments).train(is_training)
    jitted = sg.jit(network, executors=["torch"])
    for length in LENGTHS:
        x = torch.randn(2, length, 4)
        results = []
        for called in (network, jitted):
            network.zero_grad()
            torch.manual_seed(length)
            output, _ = called(x)
            output.square().sum().backward()
            results.append([output.detach(), *[parameter.grad for parameter in network.parameters()]])
        assert not [*differences(results[0], results[1], "results")]
    info = sg.cache_info(jitted)
    assert (info.misses, info.fallbacks) == (compilations, 0)


def test_convolutions_by_batch() -> None:
    def function(x: T, weight: T) -> T:
        return F.max_pool2d(F.conv2d(x, weight, padding=1).relu(), 2)

    calls = [[numbers(n, 3, 8, 6, grad=True), numbers(4, 3, 3, 3, grad=True)] for n in LENGTHS]
    check(function, calls, marks={"x": {0}})


def test_a_small_network_by_batch() -> None:
    network = torch.nn.Sequential(*[torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3)]).double()
    jitted = dynamic(network)
    for length in LENGTHS:
        x = numbers(length, 6)
        results = []
        for called in (network, jitted):
            network.zero_grad()
            called(x).square().mean().backward()
            results.append([parameter.grad for parameter in network.parameters()])
        assert not [*differences(results[0], results[1], "gradients")]
    assert entries(jitted) == 1


def test_without_a_gradient_and_in_inference_mode() -> None:
    jitted = dynamic(lambda x: (x @ x.t()).softmax(-1))
    for mode in (torch.no_grad, torch.inference_mode):
        for length in LENGTHS:
            with mode():
                x = numbers(length, 4)
                assert torch.equal(jitted(x), (x @ x.t()).softmax(-1))
    assert entries(jitted) == 2


@pytest.mark.parametrize("memory", ["eager", "balanced", "lean"])
def test_what_is_made_again_is_made_with_the_sizes_of_the_call(memory: Any) -> None:
    def function(x: T) -> T:
        return ((x.sin() * x.cos()).exp().reshape(-1) * x.shape[0]).sigmoid().sum()

    jitted = dynamic(function, memory=memory)
    for length in LENGTHS:
        x, y = numbers(length, 4, grad=True), numbers(length, 4, grad=True)
        jitted(x).backward()
        function(y).backward()
        assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
    assert entries(jitted) == 1


def test_strides_follow_the_sizes_or_are_another_entry() -> None:
    def function(x: T) -> tuple[T, T, T]:
        return x * 2, x.reshape(-1), x.contiguous()

    check(function, [[numbers(4, n).t()] for n in LENGTHS])
    check(function, [[numbers(n, m, 3).transpose(1, 2)] for n, m in PAIRS])
    check(function, [*rows(), *[[numbers(4, n).t()] for n in LENGTHS], *[[numbers(n, 9)[:, ::2]] for n in LENGTHS]], 3)


def test_writes_to_an_input() -> None:
    check(lambda x: x.mul_(2).sum(), [[x.detach().clone()] for (x,) in rows()])
    check(lambda x: x[: x.shape[0] - 1].add_(1), [[numbers(n, 4)] for n in (3, 5, 8)])


@pytest.mark.parametrize("write", [T.copy_, T.add_, torch.Tensor.fill_], ids=["copy", "add", "fill"])
def test_writes_at_a_position_that_changes(write: Callable[..., Any]) -> None:
    def step(cache: T, x: T, position: int) -> T:
        write(cache[:, position : position + 1], x)
        return cache[:, : position + 1].sum(1)

    jitted = sg.jit(step, executors=["torch"], strict=True)
    cache, expected = torch.zeros(2, 16, 3), torch.zeros(2, 16, 3)
    for position in range(2, 14):
        x = torch.ones(2, 1, 3) * position if write is not T.fill_ else torch.tensor(float(position))
        assert torch.equal(jitted(cache, x, position), step(expected, x, position))
        assert torch.equal(cache, expected)
    assert sg.cache_info(jitted).misses == 2


# -- what is decided by a size -----------------------------------------------------------------------------------------


def test_a_branch_holds_the_entry_to_its_side_and_says_so() -> None:
    jitted = check(lambda x: x * 2 if x.shape[0] > 4 else x * 3, rows(), 2)
    report = str(sg.explain(jitted).guards())
    assert "s0 is t_0.size(0)" in report
    assert f"only if s0 > 4 ({__file__}:" in report


def test_zero_and_one_are_sizes_of_their_own() -> None:
    check(lambda x: x.sum() + x.numel(), [[numbers(n, 3)] for n in (4, 0, 1, 6, 2, 1, 0)], 3)
    check(lambda x, y: x + y, [[numbers(n, 4), numbers(m, 4)] for n, m in ((3, 3), (5, 1), (7, 7), (2, 1), (1, 2))], 3)


def test_sizes_that_happen_to_be_equal_are_not_taken_for_equal() -> None:
    check(lambda x, y: (x @ y).sum(), [[numbers(*s), numbers(*t)] for s, t in (((4, 4), (4, 4)), ((3, 5), (5, 6)))])


FIXING: list[Callable[[T], Any]] = [
    lambda x: x * len(range(x.shape[0])),
    lambda x: sum(row.sum() for row in x),
    lambda x: x / math.sqrt(x.shape[0]),
    lambda x: x * (1 / x.shape[0]),
    lambda x: x * x.shape[0] ** -0.5,
    lambda x: x * (0.1 * x.shape[0] * 0.3 + 0.7),
    lambda x: (x * 2, x.shape[0], x.shape, 2 * x.shape[0] + 1),
]


@pytest.mark.parametrize("function", FIXING)
def test_what_python_makes_of_a_size_fixes_it(function: Callable[[T], Any]) -> None:
    """An integer that Python takes, a float, a number that is returned."""
    jitted = check(function, rows()[:2] * 2, 2)
    assert "only if s0 == 5" in str(sg.explain(jitted).guards())


def test_floats_that_are_compared_fix_all_sizes() -> None:
    for function in (
        lambda x: x * 2 if x.shape[0] * 0.1 * 0.3 > 0.1 else x,
        lambda x: x * 2 if x.shape[0] / 2 > 2.4 else x,
    ):
        jitted = check(function, rows()[:2], 2)
        assert "dynamic sizes: fixed, for with symbolic ones there was" in str(sg.explain(jitted))


def test_a_value_that_sizes_decide_is_looked_at_in_every_call() -> None:
    check(lambda x: x * torch.arange(x.shape[0]).sum().item(), rows()[:2] * 2, 2)
    check(lambda x: x * 2 if torch.arange(x.shape[0]).sum() > 9 else x * 3, [*rows(), *rows()], 2)


def test_data_that_decide_a_shape_are_checked_as_ever() -> None:
    jitted = dynamic(lambda x: x[x > 0] * 2, specialize_on_data=True)
    for length in (*LENGTHS, *LENGTHS):
        x = numbers(length, 4)
        assert torch.equal(jitted(x), x[x > 0] * 2)


def test_recompiling_names_the_constraint() -> None:
    jitted = sg.jit(lambda x: x * len(range(x.shape[0])), dynamic=True, recompile_limit=2)
    jitted(numbers(3, 4))
    jitted(numbers(4, 4))
    with pytest.warns(RecompileWarning, match=r"an entry is for calls with s0 == 4\s\(.*test_symbolic_sizes.py:\d+\)"):
        jitted(numbers(5, 4))


# -- backwards ---------------------------------------------------------------------------------------------------------


PARTS: tuple[Callable[[Any], Any], ...] = (
    lambda out: out[0],
    lambda out: out[1].sum(),
    lambda out: out[0] * 2 + out[1].sum(),
)


def test_backwards_for_other_grad_outputs_serve_all_sizes() -> None:
    def function(x: T) -> tuple[T, T]:
        return (x * x).sum(), x.sin()

    jitted = dynamic(function)
    for length in LENGTHS:
        for part in PARTS:
            x, y = numbers(length, 4, grad=True), numbers(length, 4, grad=True)
            part(jitted(x)).backward()
            part(function(y)).backward()
            assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
    bridge = last_entry(jitted).bridge
    assert entries(jitted) == 1
    assert bridge is not None
    assert not bridge.backwards._backwards
    assert all(len(found) == 1 and not found[0][1] for found in bridge.backwards._generals.values())


def test_grad_outputs_of_other_strides_are_compiled_by_their_sizes() -> None:
    jitted = dynamic(lambda x: x * x)
    for length in (*LENGTHS, *LENGTHS):
        x = numbers(length, 4, grad=True)
        grad = numbers(4, length).t()
        jitted(x).backward(grad)
        assert torch.equal(x.grad, 2 * x.detach() * grad)  # type: ignore[arg-type]
    bridge = last_entry(jitted).bridge
    assert bridge is not None
    assert len(bridge.backwards._backwards) == len(LENGTHS)


def test_backwards_that_are_made_by_size_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backwards, "KEPT", 2)
    jitted = dynamic(lambda x: x * x)
    for length in (3, 5, 8, 3):
        x, grad = numbers(length, 4, grad=True), numbers(4, length).t()
        jitted(x).backward(grad)
        assert torch.equal(x.grad, 2 * x.detach() * grad)  # type: ignore[arg-type]
    bridge = last_entry(jitted).bridge
    assert bridge is not None
    assert len(bridge.backwards._backwards) == 2


def test_a_scalar_grad_output_of_another_dtype_is_not_taken_for_another_size() -> None:
    def function(x: T) -> tuple[T, T]:
        return (x.sum(1) * x.shape[0]).sum(), x * 2

    jitted = dynamic(function)
    for length in LENGTHS:
        x = numbers(length, 4, grad=True)
        (grad,) = torch.autograd.grad(jitted(x)[0], x, torch.tensor(2.0, dtype=torch.float64))
        assert torch.equal(grad, torch.full_like(x, 2.0 * length))


def test_second_derivatives() -> None:
    jitted = dynamic(lambda x: (x.sin() * x).sum() / x.shape[0])
    for length in (*LENGTHS, *LENGTHS):
        found = []
        for function in (jitted, lambda x: (x.sin() * x).sum() / x.shape[0]):
            x = numbers(length, 4, grad=True)
            (first,) = torch.autograd.grad(function(x), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x)
            found.append([first, second])
        assert not [*differences(found[0], found[1], "derivatives")]
    assert entries(jitted) == 1


def test_a_call_with_another_size_between_forward_and_backward() -> None:
    jitted = dynamic(lambda x: (x * x).reshape(-1) * x.shape[0])
    xs = [numbers(length, 4, grad=True) for length in LENGTHS]
    results = [jitted(x) for x in xs]
    for x, result in zip(reversed(xs), reversed(results), strict=True):
        result.sum().backward()
        assert torch.equal(x.grad, 2 * x.detach() * x.shape[0])  # type: ignore[arg-type]


# -- rules and executors -----------------------------------------------------------------------------------------------


def test_registered_rules_and_implementations_get_the_sizes() -> None:
    table = sg.Table("sized")
    seen: list[tuple[int, ...]] = []

    @table.implementation("torch.nn.functional.gelu")
    def gelu(x: T) -> T:
        seen.append(tuple(x.shape))
        return F.gelu(x)

    @table.grad_rule("torch.sin")
    def sine(x: T) -> Any:
        return torch.sin(x), lambda grad: (grad * torch.cos(x) * x.shape[0]).reshape(x.shape)

    executor = sg.Executor("sized", table=table)
    jitted = sg.jit(lambda x: F.gelu(x.detach()) + torch.sin(x), executors=[executor, "torch"], dynamic=True)
    for length in LENGTHS:
        x = numbers(length, 4, grad=True)
        result = jitted(x)
        assert torch.equal(result, F.gelu(x) + x.sin())
        result.sum().backward()
        assert torch.equal(x.grad, x.detach().cos() * length)  # type: ignore[arg-type]
    assert entries(jitted) == 1
    assert seen == [(length, 4) for length in LENGTHS]


class Fusing(sg.FusionExecutor):
    """Takes everything."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        return region.function()


def test_regions_of_dynamic_sizes_are_left_to_others_with_the_reason() -> None:
    jitted = sg.jit(
        lambda x, w: (x.sin().cos(), w.sin().cos()), executors=[Fusing("fusing"), "torch"], dynamic={"x": {0}}
    )
    warn_once.cache_clear()
    with pytest.warns(PluginWarning, match="executor fusing is listed and takes nothing whose sizes vary: .*dynamic=F"):
        jitted(numbers(3, 4), numbers(3))
    for length in LENGTHS:
        x, w = numbers(length, 4), numbers(3)
        assert not [*differences((x.sin().cos(), w.sin().cos()), jitted(x, w), "result")]
    report = str(sg.explain(jitted).operators())
    assert "fusing: its regions are compiled for fixed sizes, and these are dynamic" in report
    assert any(item.symbol.name.startswith("fusing") for item in sg.last_traces(jitted)[-1].bound_symbols)
    assert entries(jitted) == 1


def test_strict_a_listed_executor_of_fixed_sizes_is_an_error_where_these_vary() -> None:
    options: dict[str, Any] = {"executors": [Fusing("fusing"), "torch"], "strict": True}
    sg.jit(lambda x: x.sin().cos(), **options)(numbers(3, 4))
    with pytest.raises(ExecutorUnavailable, match="fusing is listed and takes nothing whose sizes vary"):
        sg.jit(lambda x: x.sin().cos(), dynamic=True, **options)(numbers(3, 4))


class FusingSizes(Fusing):
    """Takes everything, whatever its sizes."""

    symbolic_sizes = True

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        function = region.function()

        def run(*args: Any) -> Any:
            given = args[: len(region.numbers)]
            assert all(type(number) is int for number in given)
            seen.append((region.name, tuple([number.name for number in region.numbers]), given))
            return function(*args)

        return run


seen: list[tuple[str, tuple[str, ...], tuple[int, ...]]] = []


def test_regions_of_an_executor_that_asks_for_it_take_the_sizes_that_they_depend_on() -> None:
    def function(x: T, w: T) -> tuple[T, T]:
        return (x.sin() * x.shape[0]).reshape(-1).cos().sum(), w.sin().cos()

    seen.clear()
    jitted = sg.jit(function, executors=[FusingSizes("fusing"), "torch"], dynamic={"x": {0, 1}})
    for length in LENGTHS:
        results = []
        for called in (function, jitted):
            x, w = numbers(length, 4, grad=True), numbers(3, grad=True)
            total, other = called(x, w)
            (total + other.sum()).backward()
            results.append([total.detach(), other.detach(), x.grad, w.grad])
        assert not [*differences(results[0], results[1], str(length))]
    assert entries(jitted) == 1
    names = {name: numbers for name, numbers, _ in seen}
    assert set(names.values()) == {("s0", "s1"), ()}
    assert [given for name, numbers, given in seen if numbers and "forward" in name] == [(n, 4) for n in LENGTHS]
    report = str(sg.explain(jitted).operators())
    assert "fixed sizes" not in report


# -- the option --------------------------------------------------------------------------------------------------------


def test_dimensions_are_marked_by_parameter() -> None:
    def function(x: T, others: list[T], *, scale: T) -> T:
        return (x * scale).sum() + others[0].sum()

    jitted = dynamic(function, {"x": {-1}, "others": [0]})
    for length in LENGTHS:
        x, other = numbers(4, length), numbers(length + 1, 3)
        expected = function(x, [other], scale=x[:, :1])
        assert torch.equal(jitted(x, [other], scale=x[:, :1].clone()), expected)
    assert entries(jitted) == 1
    jitted(numbers(5, 3), [numbers(3, 3)], scale=numbers(5, 1))
    assert entries(jitted) == 2


@pytest.mark.parametrize("marks", ["x", {"x": 0}, {"x": "0"}, {0: [0]}, 1])
def test_what_is_no_marking_is_refused(marks: Any) -> None:
    with pytest.raises(InvalidInput, match="is not True, False, or a dict from parameters"):
        sg.jit(lambda x: x, dynamic=marks)


def test_unknown_parameters_and_dimensions_are_refused() -> None:
    with pytest.raises(InvalidInput, match="dynamic names 'y'; the parameters are x"):
        sg.jit(lambda x: x, dynamic={"y": {0}})
    with pytest.raises(InvalidInput, match=r"marks dimension 2 of 'x', a tensor of shape \[3, 4\]"):
        sg.jit(lambda x: x, dynamic={"x": {2}})(numbers(3, 4))


def test_static_traces_know_no_sizes() -> None:
    jitted = sg.jit(lambda x: x.reshape(-1) * x.shape[0])
    jitted(numbers(3, 4))
    assert not sg.last_traces(jitted)[-1].numbers
    explanation = sg.explain(jitted)
    assert "[12]" not in f"{explanation}{explanation.operators()}{explanation.saved()}"
    assert explanation.as_dict()["sizes"] == []


def test_a_trace_with_a_size_that_it_is_not_given_is_refused() -> None:
    jitted = dynamic(lambda x: (x * 2).reshape(x.numel()) + 1)
    jitted(numbers(3, 4))
    trace = sg.last_traces(jitted)[-1]
    alone = sg.Trace(trace.name, trace.inputs, trace.outputs, trace.bound_symbols)
    with pytest.raises(Unsupported, match="needs the sizes s0, s1, which it is not given"):
        alone.python()
    assert "s0" in repr(alone)


# -- models ------------------------------------------------------------------------------------------------------------


#: Before torch 2.13 attention with dropout consists of functions that know numbers alone, and its sizes are fixed.
ATTENTION_DROPOUT = 0.1 if torch.__version__ >= "2.13" else 0.0


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=16,
        vocab_size=31,
        n_positions=64,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_pdrop=ATTENTION_DROPOUT,
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=31,
        max_position_embeddings=64,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_language_model_compiles_once_for_ten_lengths_and_once_more_for_one(make: Any, quiet: None) -> None:
    torch.manual_seed(0)
    model = make()
    jitted = sg.jit(model, executors=["torch"], dynamic={"input_ids": {1}, "labels": {1}})
    for length in (7, 9, 12, 5, 20, 3, 2, 33, 1, 17):
        ids = torch.randint(0, 31, (3, length))
        results = []
        for called in (model, jitted):
            model.zero_grad()
            torch.manual_seed(length)
            loss = called(input_ids=ids, labels=ids).loss
            loss.backward()
            results.append([loss, *[parameter.grad for parameter in model.parameters()]])
        assert not [*differences(results[0], results[1], f"length {length}")]
        assert entries(jitted) == 1 if length not in (1, 17) else 2
    bridge = last_entry(jitted).bridge
    assert entries(jitted) == 2
    assert bridge is not None
    assert not bridge.backwards._backwards


def test_a_language_model_by_batch_and_length(quiet: None) -> None:
    torch.manual_seed(0)
    model = gpt2().eval()
    jitted = dynamic(model)
    for batch, length in ((2, 7), (3, 9), (5, 4)):
        ids = torch.randint(0, 31, (batch, length))
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, -2:] = 0
        results = []
        for called in (model, jitted):
            model.zero_grad()
            out = called(input_ids=ids, labels=ids, attention_mask=mask)
            out.loss.backward()
            results.append([out.loss, out.logits, *[parameter.grad for parameter in model.parameters()]])
        assert not [*differences(results[0], results[1], f"{batch} of length {length}")]
    assert entries(jitted) == 1


def test_sizes_are_integers_to_the_function() -> None:
    def function(x: T) -> Any:
        rows = x.shape[0]
        x = x * 2 if isinstance(rows, int) else x * 3
        half = rows / 2
        x = x * 2 if isinstance(half, float) else x * 3
        return x, f"{rows} rows, {rows + 1:4d}", repr(rows), str(x.shape[0]), f"{half}, {half:.3f}", math.ceil(half)

    jitted = sg.jit(function, executors=["torch"])
    for rows in (3, 4, 5, 5):
        result, *texts = jitted(torch.ones(rows))
        expected, *expected_texts = function(torch.ones(rows))
        assert torch.equal(result, expected)
        assert texts == expected_texts
    assert "__class__" not in vars(torch.SymInt)


def test_a_function_that_asks_for_the_type_of_a_size() -> None:
    jitted = sg.jit(lambda x: x * 2 if type(x.shape[0]) is int else x * 3, executors=["torch"])
    for rows in (3, 4, 5):
        assert torch.equal(jitted(torch.ones(rows)), torch.full((rows,), 2.0))


def test_rows_cropped_from_buffers_of_several_lengths_have_symbolic_strides() -> None:
    def function(x: T) -> T:
        return (x.sin() @ x.transpose(-1, -2)).sum(-1)

    jitted = sg.jit(function, executors=["torch"])
    for length, rows in ((8, 5), (9, 6), (10, 6), (11, 7), (12, 8), (13, 9)):
        x = torch.randn(2, length, 4)[:, :rows].requires_grad_()
        expected = function(x)
        assert torch.equal(jitted(x), expected)
        (found,) = torch.autograd.grad(jitted(x).sum(), x)
        (wanted,) = torch.autograd.grad(expected.sum(), x)
        assert torch.equal(found, wanted)
    assert entries(jitted) <= 3
    assert "is t_0.stride(0)" in str(sg.explain(jitted).guards())
