"""Fuse: which regions a fusion executor gets, and what stands in the trace for them."""

from __future__ import annotations

import random
import re
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from switchgear.errors import ExecutorFailed, RuleError
from switchgear_core.ir.choice import Implementation
from switchgear_core.ir.symbol import RANDOM, Symbol, changed, proxies
from switchgear_core.regions.fuse import fuse
from switchgear_core.regions.regions import Dataflow, cut, find_regions
from switchgear_runtime.last_call import compiler_of
from switchgear_tools.bisecting import bisect
from switchgear_tools.cli import main
from tests.core.training import Kernel, backward, choice, executor, forward, leaf, line_of, lines, operators
from tests.oracle import assert_same, assert_trains_as_eager

ATEN = torch.ops.aten


class Toy(sg.FusionExecutor):
    """Takes all leaves but those named, and runs a region by PyTorch."""

    def __init__(self, name: str = "toy", *, without: Iterable[Any] = (), only: Iterable[Any] = ()) -> None:
        super().__init__(name)
        self.without = {str(overload) for overload in without}
        self.only = {str(overload) for overload in only}
        self.regions: list[sg.Trace] = []
        self.calls = 0

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        if not bound_symbol.is_leaf:
            return sg.Declined("leaves only")
        name = bound_symbol.symbol.name
        wanted = name in self.only if self.only else name not in self.without
        return None if wanted else sg.Declined(f"not {name}")

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        self.regions.append(region)
        function = region.function()

        def run(*args: Tensor) -> Any:
            self.calls += 1
            return function(*args)

        return run

    @property
    def parts(self) -> list[list[str]]:
        """The operators of each region."""
        return [[item.symbol.name.split(".")[1] for item in region.bound_symbols] for region in self.regions]


def run(function: Any, *args: Any, executors: list[Any]) -> Any:
    """The jitted function, called twice with eager's result."""
    jitted = sg.jit(function, executors=executors)
    for _ in range(2):
        assert_same(jitted(*args), function(*args))
    return jitted


def x(*shape: int) -> Tensor:
    return torch.rand(shape or (3,)) + 0.5


# What a region is.


def test_a_chain_is_one_region() -> None:
    toy = Toy()
    jitted = run(lambda a: (a.sin() * 2).exp(), x(), executors=[toy, "torch"])
    assert toy.parts == [["sin", "mul", "exp"]]
    (line,) = lines(forward(jitted))
    assert [part.symbol.name for part in line.subsymbols] == ["aten.sin.default", "aten.mul.Tensor", "aten.exp.default"]
    assert line.implementation is not None
    assert line.implementation.owner == "toy"
    assert toy.calls == 2


class Boxed(Toy):
    """Takes what a region reads in a list, and says how much of it is left once the list is empty."""

    boxed = True

    def __init__(self) -> None:
        super().__init__(without=[ATEN.mm.default])
        self.left: list[int] = []

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        function = region.function(boxed=True)

        def run(args: list[Any]) -> Any:
            given = [*args]
            held = [weakref.ref(value) for value in given if isinstance(value, Tensor)]
            args.clear()
            results = function(given)
            self.left.append(sum(reference() is not None for reference in held))
            return results

        return run


def test_a_boxed_region_is_the_last_to_hold_what_it_reads_last() -> None:
    boxed = Boxed()

    def function(a: Tensor, b: Tensor) -> Tensor:
        inner = a @ b
        product = (inner * 2).exp() @ b
        return (product.sin() * inner).cos()

    jitted = run(function, x(3, 3), x(3, 3), executors=[boxed, "torch"])
    text = forward(jitted).python()
    assert re.search(r"args = \[t0\]\n +\w+, = toy_computation_0\(args\)", text)
    assert re.search(r"args = \[(t\d, t0|t0, t\d)\]\n +del (t\d, t0|t0, t\d)\n +\w+, = toy_computation_1\(args\)", text)
    assert boxed.left == [1, 0, 1, 0]


def test_a_boxed_region_of_a_backward() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return (((a @ b).sin() * b).exp() @ b).cos().sum()

    results = []
    lists: list[list[Any]] = [["torch"], [Boxed(), "torch"], [Boxed(), "torch"]]
    for executors in lists:
        given = [torch.linspace(0, 1, 9).reshape(3, 3).requires_grad_() for _ in range(2)]
        jitted = sg.jit(function, executors=executors, memory="balanced")
        for _ in range(2):
            jitted(*given).backward()
        results.append([tensor.grad for tensor in given])
    for found in results[1:]:
        assert_same(found, results[0])


def test_where_pytorch_raises_too_the_failure_of_a_boxed_region_is_eagers() -> None:
    class Strict(Boxed):
        def compile(self, region: sg.Trace) -> Callable[..., Any]:
            function = region.function(boxed=True)

            def run(args: list[Any]) -> Any:
                given = [*args]
                args.clear()
                try:
                    return function(given)
                except IndexError:
                    raise ValueError("no such row") from None

            return run

    def lookup(index: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.embedding(index * 1, weight * 2)

    weight = torch.randn(3, 2)
    jitted = sg.jit(lookup, executors=[Strict(), "torch"])
    for _ in range(2):
        with pytest.raises(IndexError, match="index out of range in self"):
            jitted(torch.tensor([7]), weight)
        assert_same(jitted(torch.tensor([1]), weight), lookup(torch.tensor([1]), weight))


def test_the_failure_of_a_boxed_region_is_named() -> None:
    class Failing(Boxed):
        def compile(self, region: sg.Trace) -> Callable[..., Any]:
            def run(args: list[Any]) -> Any:
                args.clear()
                raise ValueError("no luck")

            return run

    jitted = sg.jit(lambda a: a.sin().exp(), executors=[Failing(), "torch"])
    for _ in range(2):
        with pytest.raises(ExecutorFailed, match=r"executor toy failed in toy_computation_0.*ValueError: no luck"):
            jitted(x())


def test_boxed_regions_of_symbolic_sizes() -> None:
    boxed = Boxed()
    boxed.symbolic_sizes = True

    def function(a: Tensor) -> Tensor:
        return (a.sum() * a.shape[0]).sin() * a.exp()

    jitted = sg.jit(function, executors=[boxed, "torch"], dynamic=True)
    for length in (3, 4, 5):
        assert_same(jitted(x_of(length)), function(x_of(length)))


def x_of(length: int) -> Tensor:
    return torch.linspace(0, 1, length)


def test_printed_with_its_parts() -> None:
    toy = Toy()

    def function(a: Tensor) -> Tensor:
        return a.sin().exp()

    jitted = run(function, x(), executors=[toy, "torch"])
    text = forward(jitted).python(decompositions=True)
    name = lines(forward(jitted))[0].symbol.name
    assert f"t1, = {name}(t_0)" in text
    assert "torch.ops.aten.sin.default(t_0)" in text


def test_diamond_around_another_executors_operator_is_two_regions() -> None:
    def diamond(a: Tensor) -> Tensor:
        b = a.sin() * 2
        return b.exp() * b + 1

    toy = Toy(without=[ATEN.exp.default])
    run(diamond, x(), executors=[toy, "torch"])
    assert toy.parts == [["sin", "mul"], ["mul", "add"]]


def test_what_reads_nothing_of_its_region_goes_to_its_reader() -> None:
    """`b` could run at the very beginning, which would only keep its result waiting."""

    def late(a: Tensor, b: Tensor) -> Tensor:
        c = (a.sin() + 1).exp()
        return (c.cos() * 2).exp() * (b.sin() * 3)

    toy = Toy(without=[ATEN.exp.default])
    run(late, x(), x(), executors=[toy, "torch"])
    assert toy.parts == [["sin", "add"], ["cos", "mul"], ["sin", "mul", "mul"]]


def test_what_would_keep_more_waiting_does_not() -> None:
    def sums(a: Tensor, other: Tensor) -> Tensor:
        b = a.exp()
        c = (b.sin() * 2).sum()
        return (other.exp().cos().exp().sum() + 1) * c

    toy = Toy(without=[ATEN.exp.default])
    run(sums, x(5), x(5), executors=[toy, "torch"])
    assert ["sin", "mul", "sum"] in toy.parts


def test_side_by_side_where_they_read_the_same() -> None:
    toy = Toy()
    run(lambda a, b: (a.sin() + 1, a.cos() + 2, b.sin() + 3), x(), x(4), executors=[toy, "torch"])
    assert sorted(toy.parts) == [["sin", "add"], ["sin", "add", "cos", "add"]]


def test_higher_executor_cuts() -> None:
    kernel, toy = Kernel(ATEN.exp), Toy()

    def function(a: Tensor) -> Tensor:
        return (a.sin() * 2).exp().cos() + 1

    run(function, x(), executors=[executor("fast", {ATEN.exp.default: kernel}), toy, "torch"])
    assert toy.parts == [["sin", "mul"], ["cos", "add"]]
    assert kernel.calls == 2


def test_lower_executor_does_not() -> None:
    kernel, toy = Kernel(ATEN.exp), Toy()
    run(lambda a: (a.sin() * 2).exp() + 1, x(), executors=[toy, executor("fast", {ATEN.exp: kernel}), "torch"])
    assert toy.parts == [["sin", "mul", "exp", "add"]]


def test_two_fusion_executors() -> None:
    first, second = Toy("first", only=[ATEN.sin.default, ATEN.cos.default]), Toy("second")
    run(lambda a: (a.sin().cos() * 2 + 1).cos().sin(), x(), executors=[first, second, "torch"])
    assert first.parts == [["sin", "cos"], ["cos", "sin"]]
    assert second.parts == [["mul", "add"]]


def test_composites_are_taken_by_their_leaves() -> None:
    toy = Toy()
    jitted = run(lambda a: torch.nn.functional.gelu(a) * 2, x(), executors=[toy, "torch"])
    assert toy.parts == [["gelu", "mul"]]
    assert choice(jitted, "execution", "torch.nn.functional.gelu").owner == "decomposition"


def test_composite_taken_whole() -> None:
    class Whole(Toy):
        def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
            names = ("torch.nn.functional.gelu", "torch.mul")
            return None if bound_symbol.symbol.name in names else sg.Declined("composites only")

    toy = Whole()
    run(lambda a: torch.nn.functional.gelu(a) * 2, x(), executors=[toy, "torch"])
    assert [item.symbol.name for item in toy.regions[0].bound_symbols] == ["torch.nn.functional.gelu", "torch.mul"]
    alone = Whole()
    jitted = run(lambda a: torch.nn.functional.gelu(a), x(), executors=[alone, "torch"])
    assert not alone.regions
    assert choice(jitted, "execution", "torch.nn.functional.gelu").declined[0][0] == "toy"


# Views.


def test_no_region_returns_a_view() -> None:
    def function(a: Tensor) -> tuple[Tensor, Tensor]:
        b = (a.sin() * 2).t()
        return b.exp(), b

    toy = Toy(without=[ATEN.exp.default])
    jitted = run(function, x(2, 3), executors=[toy, "torch"])
    assert toy.parts == [["sin", "mul"]]
    assert operators(forward(jitted))[1:] == ["aten.t.default", "torch.exp"]
    declined = choice(jitted, "execution", "aten.t.default").declined
    assert ("toy", "a view that is read outside of its regions") in declined


def test_each_region_makes_the_views_that_it_reads() -> None:
    def function(a: Tensor) -> Tensor:
        b = a.t()[0]
        c = (b * 2 + 1).exp()
        return c * b + 1

    toy = Toy(without=[ATEN.exp.default])
    jitted = run(function, x(2, 3), executors=[toy, "torch"])
    assert toy.parts == [["t", "select", "mul", "add"], ["t", "select", "mul", "add"]]
    assert len(lines(forward(jitted))) == 3
    reasons = [item.reason for item in sg.last_choices(jitted) if item.symbol == "aten.t.default"]
    assert reasons == [f"in {region.name}" for region in toy.regions]


def test_views_of_several_tensors() -> None:
    def function(a: Tensor) -> Tensor:
        b, c = (a * 2).split(2)
        result: Tensor = (b.sin() + c.cos()).exp() + c
        return result

    run(function, x(4), executors=[Toy(without=[ATEN.exp.default]), "torch"])


def test_views_alone_are_no_region() -> None:
    toy = Toy()
    jitted = run(lambda a: a.t().reshape(-1)[2:], x(2, 3), executors=[toy, "torch"])
    assert not toy.regions
    assert "toy" not in {one.owner for one in sg.last_choices(jitted)}


def test_composites_of_pytorch_are_restored_where_no_region_takes_a_part() -> None:
    """The result of a linear layer of a batch of matrices is a view of an inner value."""
    toy = Toy(without=[ATEN.addmm.default])
    arguments = x(2, 3, 4), x(5, 4), x(5)
    jitted = run(torch.nn.functional.linear, *arguments, executors=[toy, "torch"])
    assert not toy.regions
    assert operators(forward(jitted)) == ["torch.nn.functional.linear"]


def test_composites_stay_open_where_a_region_reads_a_view_of_an_inner_value() -> None:
    toy = Toy(without=[ATEN.addmm.default])
    arguments = x(2, 3, 4), x(5, 4), x(5)
    jitted = run(lambda *layer: torch.nn.functional.linear(*layer).sin() * 2, *arguments, executors=[toy, "torch"])
    assert toy.parts == [["view", "sin", "mul"]]
    assert "torch.nn.functional.linear" not in operators(forward(jitted))


# Regions that do not come about.


def test_fewer_operators_than_the_minimum() -> None:
    toy = Toy(without=[ATEN.exp.default])
    jitted = run(lambda a: a.sin().exp(), x(), executors=[toy, "torch"])
    assert not toy.regions
    found = choice(jitted, "execution", "aten.sin.default")
    assert found.owner == "torch"
    assert ("toy", "a region of 1 operators, fewer than 2") in found.declined
    toy.minimum = 1
    run(lambda a: a.sin().exp(), x(), executors=[toy, "torch"])
    assert toy.parts == [["sin"]]


def test_next_claimant_takes_what_makes_no_region() -> None:
    kernel, toy = Kernel(ATEN.sin), Toy(without=[ATEN.exp.default])
    fast = executor("fast", {ATEN.sin.default: kernel})
    run(lambda a: a.sin().exp(), x(), executors=[toy, fast, "torch"])
    assert kernel.calls == 2


def test_compile_that_gives_no_function_is_named() -> None:
    class Forgetful(Toy):
        def compile(self, region: sg.Trace) -> Any:
            return None

    with pytest.raises(ExecutorFailed, match=r"toy failed .*compile returned None, neither a function nor Declined"):
        sg.jit(lambda a: a.sin().exp(), executors=[Forgetful(), "torch"])(x())


def test_compile_that_fails_is_named() -> None:
    class Failing(Toy):
        def compile(self, region: sg.Trace) -> Callable[..., Any]:
            raise KeyError("no")

    with pytest.raises(ExecutorFailed, match=r"toy failed to compile regions of aten\.sin\.default, aten\.exp"):
        sg.jit(lambda a: a.sin().exp(), executors=[Failing(), "torch"])(x())


def test_region_that_fails_when_it_runs_is_named() -> None:
    class Failing(Toy):
        def compile(self, region: sg.Trace) -> Callable[..., Any]:
            def boom(*args: Any) -> Any:
                raise KeyError("no")

            return boom

    with pytest.raises(ExecutorFailed, match=r"toy failed in toy_\w+_0, called at test_fuse\.py"):
        sg.jit(lambda a: a.sin().exp(), executors=[Failing(), "torch"])(x())


# Random numbers.


@pytest.mark.parametrize("without", [[], [ATEN.sin.default], [ATEN.bernoulli.p], [ATEN.rand_like.default]])
def test_draws_keep_their_order(without: list[Any]) -> None:
    def function(a: Tensor) -> Any:
        b = torch.rand_like(a)
        c = torch.bernoulli(a.sin().abs(), 0.3) * 2
        d = torch.rand_like(a) + b
        return d * 2, c, torch.randn_like(c) * a.sin()

    toy = Toy(without=without)
    jitted = sg.jit(function, executors=[toy, "torch"])
    results = []
    for call in (jitted, jitted, function):
        torch.manual_seed(5)
        results.append((call(x_fixed()), torch.get_rng_state()))
    assert_same(results[0], results[2])
    assert_same(results[1], results[2])


def x_fixed() -> Tensor:
    return torch.linspace(0.1, 0.9, 6)


def test_dropout_trains_as_eager() -> None:
    def function(a: Tensor) -> Tensor:
        return torch.nn.functional.dropout((a * 2).sin(), 0.5).exp() * 3

    assert_trains_as_eager(function, leaf(20), executors=[Toy(), "torch"])


# Gradients.


def test_backward_regions_keep_their_links() -> None:
    toy = Toy()

    def function(a: Tensor) -> Tensor:
        return a.sin().exp() * 2

    jitted = assert_trains_as_eager(function, leaf(3), executors=[toy, "torch"])
    fused = [item for item in lines(backward(jitted)) if item.subsymbols]
    assert fused
    for item in fused:
        named = {link.forward.symbol.name for part in item.subsymbols for link in part.links}
        assert named == {link.forward.symbol.name for link in item.links} != set()
    assert "forward: " in backward(jitted).python(link=True)


@pytest.mark.parametrize("without", [[], [ATEN.addmm.default, ATEN.mm.default], [ATEN.native_layer_norm.default]])
def test_training_step(without: list[Any]) -> None:
    def function(a: Tensor, w: Tensor, b: Tensor) -> Tensor:
        hidden = torch.nn.functional.layer_norm(torch.nn.functional.linear(a, w, b), (5,))
        return torch.nn.functional.cross_entropy(hidden.softmax(-1) * a.sum(), torch.tensor([1, 2, 0]))

    args = leaf(3, 4), leaf(5, 4), leaf(5)
    assert_trains_as_eager(function, *args, executors=[Toy(without=without), "torch"])


def test_writes_to_inputs() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2).add_(b)
        b[0] = a.sum()
        return a.sin() * b

    toy = Toy()
    jitted = sg.jit(function, executors=[toy, "torch"])
    found, wanted = (torch.ones(3), torch.arange(3.0)), (torch.ones(3), torch.arange(3.0))
    for _ in range(2):
        assert_same((jitted(*found), found), (function(*wanted), wanted))
    assert toy.calls


# Fuel.


def test_fuel() -> None:
    def function(a: Tensor) -> Tensor:
        b = (a.sin() * 2).exp()
        c = (b.cos() * 2).exp()
        return c.sin() + 1

    for fuel in range(5):
        toy = Toy(without=[ATEN.exp.default])
        jitted = sg.jit(function, executors=[toy, "torch"], fuel=fuel)
        assert_same(jitted(x_fixed()), function(x_fixed()))
        assert toy.parts == [["sin", "mul"], ["cos", "mul"], ["sin", "add"]][:fuel]
        if fuel == 2:
            reasons = {reason for one in sg.last_choices(jitted) for _, reason in one.declined}
            assert "no fuel is left for its region" in reasons


def test_fuel_is_shared() -> None:
    fuel, toy = sg.Fuel(3), Toy()
    first, second = (sg.jit(lambda a: a.sin().exp().sum(), executors=[toy, "torch"], fuel=fuel) for _ in range(2))
    first(leaf(3)).backward()
    second(leaf(3)).backward()
    assert len(toy.regions) == len(fuel.regions) == 3


@pytest.mark.parametrize("fuel", [-1, 1.5, "3", True])
def test_fuel_is_a_number(fuel: Any) -> None:
    with pytest.raises(ValueError, match="fuel is a number of regions"):
        sg.jit(torch.sin, fuel=fuel)


# Any program.

_UNARY: tuple[Callable[..., Tensor], ...] = (
    torch.sin,
    torch.exp,
    torch.cos,
    torch.abs,
    lambda a: a.t(),
    lambda a: a.flip(0),
    lambda a: a[:, [1, 0, 2]],
)
_BINARY: tuple[Callable[..., Tensor], ...] = (torch.add, torch.mul, torch.maximum, torch.sub)


def made_up(seed: int) -> Callable[..., Any]:
    """A program of some thirty operators with no order to it."""
    draw = random.Random(seed)
    calls = [(draw.choice(_BINARY if draw.random() < 0.5 else _UNARY), draw.random(), draw.random()) for _ in range(30)]
    ends = [draw.randrange(30) for _ in range(3)]

    def program(a: Tensor, b: Tensor) -> Any:
        values = [a.tanh(), b.tanh()]
        for fn, one, other in calls:
            picked = [values[-1 - int(draw * draw * len(values))] for draw in (one, other)]
            values.append(fn(*picked) if fn in _BINARY else fn(picked[0]).tanh())
        return tuple(values[2 + end].clone() for end in ends)

    return program


def reachable(trace: sg.Trace) -> dict[sg.BoundSymbol, set[sg.BoundSymbol]]:
    """What each bound symbol needs, directly or not."""
    maker: dict[str, sg.BoundSymbol] = {}
    found: dict[sg.BoundSymbol, set[sg.BoundSymbol]] = {}
    for item in trace.bound_symbols:
        makers = {maker[proxy.name] for proxy in item.inputs if proxy.name in maker}
        found[item] = makers.union(*(found[one] for one in makers))
        maker.update((proxy.name, item) for proxy in item.outputs)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_regions_of_any_program(seed: int) -> None:
    without = [[ATEN.exp.default], [ATEN.exp.default, ATEN.add.Tensor], [ATEN.flip.default, ATEN.mul.Tensor]][seed % 3]
    toy, program = Toy(without=without), made_up(seed)
    jitted = run(program, x(3, 3), x(3, 3), executors=[toy, "torch"])
    (claimed,) = [trace for trace in sg.last_traces(jitted) if trace.provenance[-1].name == "claim"]
    needs = reachable(claimed)
    maker = {proxy.name: item for item in claimed.bound_symbols for proxy in item.outputs}
    views = {"aten.t.default"}
    for region in toy.regions:
        members = [
            maker[p.name] for item in region.bound_symbols for p in item.outputs if item.symbol.name not in views
        ]
        for item in claimed.bound_symbols:
            if item not in members and item.symbol.name not in views:
                assert not (needs[item] & set(members) and any(item in needs[one] for one in members))


def test_regions_next_to_each_other_cannot_be_one() -> None:
    """Where one region reads another, something between them keeps them apart."""
    for seed in range(12):
        toy = Toy(without=[ATEN.exp.default])
        jitted = run(made_up(seed), x(3, 3), x(3, 3), executors=[toy, "torch"])
        trace = forward(jitted)
        needs = reachable(trace)
        maker = {proxy.name: item for item in trace.bound_symbols for proxy in item.outputs}
        for line in (item for item in lines(trace) if len(item.subsymbols) > 1):
            for before in {maker[proxy.name] for proxy in line.inputs if proxy.name in maker}:
                if len(before.subsymbols) > 1:
                    between = [one for one in needs[line] if before in needs[one]]
                    assert between, f"{seed}: {before.symbol.name} and {line.symbol.name}"


# Any size.


def chain(length: int) -> sg.Trace:
    """A claimed trace in which every seventh operator is another executor's, with branches that come back."""
    names = [sg.TensorProxy(f"t{index}", (4,), (1,), torch.float32, torch.device("cpu")) for index in range(length + 2)]
    symbol, toy, torch_ = (
        Symbol("aten.add.Tensor", ATEN.add.Tensor),
        Implementation("toy", id),
        Implementation("torch", id),
    )
    body = tuple(
        sg.BoundSymbol(
            symbol,
            (names[index], names[index // 2 if index % 5 == 0 else index + 1]),
            {},
            names[index + 2],
            tags=frozenset({RANDOM} if index % 97 == 0 else ()),
            implementation=torch_ if index % 7 == 0 else toy,
        )
        for index in range(length)
    )
    return sg.Trace("program", (names[0], names[1]), (names[-1],), body)


def test_time_is_linear_in_the_size() -> None:
    """Ten times the operators take about ten times as long: far less than the hundredfold of a quadratic pass."""
    seconds: dict[int, list[float]] = {2_500: [], 25_000: []}
    for length in (*seconds, *seconds, *seconds):  # the least of three: other processes take time, too
        trace = chain(length)
        begun = time.process_time()
        regions = find_regions(Dataflow(trace.bound_symbols, {"toy"}))
        seconds[length].append(time.process_time() - begun)
        assert sum(map(len, regions)) == sum(index % 7 != 0 for index in range(length))
    assert min(seconds[25_000]) < 40 * min(seconds[2_500])


def layers(count: int) -> Callable[[Tensor], Tensor]:
    """Layers of six operators, between which a tenth of the bytes inside are handed on."""

    def function(x: Tensor) -> Tensor:
        for _ in range(count):
            wide = torch.cat([x] * 10).sin()
            x = (wide * wide.cos()).exp().reshape(10, -1).sum(0)
        return x

    return function


@pytest.mark.parametrize(("count", "most"), [(3, 50), (8, 48), (8, 47), (8, 16), (9, 16), (9, 15), (20, 20)])
def test_long_regions_are_cut_between_layers(count: int, most: int) -> None:
    toy = Toy()
    toy.maximum = most
    jitted = run(layers(count), torch.rand(8), executors=[toy, "torch"])
    sizes = [len(toy.operators(region)) for region in toy.regions]
    assert sum(sizes) == 6 * count
    assert all(size % 6 == 0 and size <= most for size in sizes)
    assert (len(sizes) == 1) == (6 * count <= most)
    assert len({region.canonical() for region in toy.regions}) <= 2
    assert len(operators(forward(jitted))) == len(sizes)


@pytest.mark.parametrize("seed", range(3))
def test_cut_regions_train_as_whole_ones(seed: int) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        draw, values = random.Random(seed), [x, w]
        for _ in range(40):
            left, right = draw.choice(values), draw.choice(values)
            values.append((left.t() * right.t() if draw.random() < 0.5 else left.t() - right.t()).t().sin())
        return torch.stack(values[-10:]).sum()

    for most in (2, 7, 30):
        toy = Toy()
        toy.maximum = most
        assert_trains_as_eager(function, leaf(3, 3), leaf(3, 3), executors=[toy, "torch"])
        assert len(toy.regions) > 1
        assert max(len(toy.operators(region)) for region in toy.regions) <= most


def test_cutting_is_linear_in_the_size() -> None:
    took = {}
    for length in (2_500, 25_000):
        flow = Dataflow(chain(length).bound_symbols, {"toy"})
        members = [index for index, owner in enumerate(flow.owners) if owner]
        begun = time.process_time()
        parts = list(cut(flow, members, 256))
        took[length] = time.process_time() - begun
        assert [index for part in parts for index in part] == members
    assert took[25_000] < 40 * took[2_500]


class Interpreted(Toy):
    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        return lambda *args: None


def test_fifty_thousand_operators() -> None:
    trace = chain(50_000)
    toy = Interpreted()
    torch_executor = next(one for one in compiler_of(sg.jit(torch.sin)).selection.executors if one.name == "torch")
    selection = compiler_of(sg.jit(torch.sin, executors=[toy, torch_executor])).selection
    chosen = [
        changed(item, choices=(sg.executors.Choice("execution", item.symbol.name, "toy"),))
        for item in trace.bound_symbols
    ]
    fused = fuse(replace(trace, bound_symbols=tuple(chosen)), selection)
    assert sum(len(item.choices) for item in fused.bound_symbols) == len(chosen)
    draws = [item for item in trace.bound_symbols if item.is_random]
    order = [p.name for item in fused.bound_symbols for part in item.subsymbols or (item,) for p in part.outputs]
    place = {name: index for index, name in enumerate(order)}
    drawn = [place[item.outputs[0].name] for item in draws]
    assert drawn == sorted(drawn)
    made = {proxy.name for proxy in trace.inputs}
    for item in fused.bound_symbols:
        assert made.issuperset(proxy.name for proxy in item.inputs)
        made.update(proxy.name for proxy in item.outputs)
    assert made.issuperset(proxy.name for proxy in proxies(trace.outputs))


# Bisecting.


class Wrong(Toy):
    """Compiles `bad` to something else."""

    def __init__(self, bad: Any) -> None:
        super().__init__(without=[ATEN.exp.default])
        self.bad = str(bad)

    def compile(self, region: sg.Trace) -> Callable[..., Any]:
        function = super().compile(region)
        if all(item.symbol.name != self.bad for item in region.bound_symbols):
            return function
        return lambda *args: tuple([value + 1 for value in function(*args)])


def branched(a: Tensor) -> Tensor:
    for _ in range(6):
        a = (a.sin() * 2).exp()
    a = (a.cos() * 2).exp()  # the user's line
    for _ in range(3):
        a = (a.sin() * 2).exp()
    return a


@pytest.mark.parametrize("bad", [ATEN.cos.default, ATEN.sin.default])
def test_bisect(bad: Any) -> None:
    tried = []

    def check(fuel: sg.Fuel) -> bool:
        tried.append(fuel.limit)
        return torch.equal(sg.jit(branched, executors=[Wrong(bad), "torch"], fuel=fuel)(x_fixed()), branched(x_fixed()))

    region = bisect(check)
    first = 0 if bad is ATEN.sin.default else 6
    assert region.symbol.name.endswith(f"_{first}")
    assert str(bad) in {part.symbol.name for part in region.subsymbols}
    assert len(tried) <= 6


SCRIPT = """
import torch
import switchgear as sg
from tests.core.test_fuse import Wrong, branched

def check(fuel):
    x = torch.linspace(0.1, 0.9, 6)
    wrong = Wrong(torch.ops.aten.cos.default)
    torch.testing.assert_close(sg.jit(branched, executors=[wrong, "torch"], fuel=fuel)(x), branched(x))

def passes(fuel):
    pass

def fails(fuel):
    assert False
"""


def test_bisect_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert main(["bisect", f"{script}:check"]) == 0
    said = capsys.readouterr().out
    for part in ("_6, compiled by toy:", "aten.cos.default", line_of(branched, "user's line")):
        assert part in said
    for name, complaint in {
        "passes": "the check passes with all 0 regions fused",
        "fails": "fusion is not at fault",
        "absent": "has no absent",
    }.items():
        assert main(["bisect", f"{script}:{name}"]) == 1
        assert complaint in capsys.readouterr().err
    assert main(["bisect", str(tmp_path / "absent.py") + ":check"]) == 1
    assert main(["bisect", "script"]) == 1


def test_supports_answers_none_or_a_reason() -> None:
    class Truthful(sg.FusionExecutor):
        def supports(self, bound_symbol: sg.BoundSymbol) -> Any:
            return bound_symbol.symbol.name == "aten.sin.default"

    with pytest.raises(RuleError, match=r"supports returns None for yes, or Declined\(reason\), not False"):
        sg.jit(torch.exp, executors=[Truthful("mine"), "torch"])(torch.ones(2))
