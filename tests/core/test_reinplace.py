"""Writes in place stay writes in place where nothing can tell, and cost what is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import switchgear as sg
from switchgear.errors import InvalidTrace
from switchgear_core.ir.symbol import AFTER
from switchgear_core.ir.trace import Trace
from switchgear_core.ir.verify import verify
from switchgear_core.passes.reinplace import reinplace
from tests.core.training import forward, operators
from tests.fuzz.writes import examine
from tests.in_turn import in_turn
from tests.oracle import assert_same

#: Bytes of a cache in these tests; what a call allocates is far below.
CACHE = (2, 4, 512, 16)


class Largest(TorchDispatchMode):
    """Notes the most bytes that one operator allocates."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {one.untyped_storage()._cdata for one in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for one in _tensors(result):
            if one.untyped_storage()._cdata not in given:
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return result


def _tensors(nest: Any) -> Iterator[Tensor]:
    if isinstance(nest, Tensor):
        yield nest
    elif isinstance(nest, (tuple, list, dict)):
        for one in nest.values() if isinstance(nest, dict) else nest:
            yield from _tensors(one)


def cache() -> Tensor:
    return torch.zeros(CACHE)


def by_index_copy(k: Tensor, x: Tensor, place: Tensor) -> Tensor:
    k.index_copy_(2, place, x)
    return k[:, :, :8].sum()


def by_integer(k: Tensor, x: Tensor, place: Tensor) -> Tensor:
    k[:, :, 5] = x[:, :, 0]
    return k[:, :, :8].sum()


def by_slice(k: Tensor, x: Tensor, place: Tensor) -> Tensor:
    k[:, :, 3:4] = x
    return k[0, 0, :8].sum()


def through_two_views(k: Tensor, x: Tensor, place: Tensor) -> Tensor:
    k[0, 1, 7].mul_(0.5).add_(x[0, 1, 0])
    return k[0, 1, :8].sum()


def by_tensor_index(k: Tensor, x: Tensor, place: Tensor) -> Tensor:
    k[:, :, place] = x
    return k[:, :, :8].sum()


def through_data(k: Tensor, x: Tensor, place: Tensor) -> Tensor:
    k.data[:, :, 5:6].copy_(x)
    return k[:, :, :8].sum()


WAYS = [by_index_copy, by_integer, by_slice, through_two_views, by_tensor_index, through_data]


@pytest.mark.parametrize(
    ("function", "executors"),
    [*[(way, ["torch"]) for way in WAYS], (by_index_copy, None), (by_integer, None)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_write_to_a_cache_copies_nothing_of_its_size(function: Callable[..., Tensor], executors: Any) -> None:
    jitted = sg.jit(function, executors=executors, compile="now")
    ours, eagers = cache(), cache()
    for number in range(3):
        x = torch.full((2, 4, 1, 16), float(number))
        place = torch.tensor([number])
        assert_same(jitted(ours, x, place), function(eagers, x, place))
        assert_same(ours, eagers)
        assert ours._version == eagers._version
    trace = forward(jitted)
    assert all(proxy is None for proxy in trace.outputs[1:])
    inputs = [{"t_0": ours, "t_1": x, "t_2": place}[proxy.name] for proxy in trace.inputs]
    with Largest() as largest:  # type: ignore[no-untyped-call]
        trace.function()(*inputs)
    assert largest.bytes < cache().nbytes // 32


class Everything(sg.FusionExecutor):
    """Takes all operators, and runs them one by one."""

    def supports(self, bound_symbol: sg.BoundSymbol) -> sg.Declined | None:
        return None if bound_symbol.is_leaf else sg.Declined("leaves only")

    def compile(self, region: sg.Trace) -> Any:
        return region.function()


def average(target: Tensor, x: Tensor) -> None:
    target.mul_(0.9).add_(x, alpha=0.1)


def average_that_is_read(target: Tensor, x: Tensor) -> Tensor:
    target.mul_(0.9).add_(x, alpha=0.1)
    return target.sqrt() * x


@pytest.mark.parametrize(("function", "fused"), [(average, 0), (average_that_is_read, 1)])
def test_a_short_update_stays_out_of_regions(function: Callable[..., Any], fused: int) -> None:
    jitted = sg.jit(function, executors=[Everything("everything"), "torch"])
    ours, eagers, x = torch.ones(8), torch.ones(8), torch.rand(8)
    for _ in range(2):
        result, expected = jitted(ours, x), function(eagers, x)
        assert result is expected is None or torch.equal(result, expected)
        assert torch.equal(ours, eagers)
        assert ours._version == eagers._version
    assert len([line for line in forward(jitted).bound_symbols if line.fused_by]) == fused


def test_a_position_that_changes_is_written_in_place() -> None:
    def function(k: Tensor, x: Tensor, place: int) -> Tensor:
        k[:, :, place : place + 1].copy_(x)
        return k[:, :, :8].sum()

    jitted = sg.jit(function, executors=["torch"])
    ours, eagers = cache(), cache()
    for place in range(2, 7):
        x = torch.full((2, 4, 1, 16), float(place))
        assert_same(jitted(ours, x, place), function(eagers, x, place))
        assert_same(ours, eagers)
    assert len(forward(jitted).writes) == 1


def test_memory_of_the_programs_own_is_copied_once() -> None:
    def rows(x: Tensor) -> Tensor:
        out = torch.zeros(20, 3)
        for number in range(20):
            out[number] = x * number
        return out

    jitted = sg.jit(rows, executors=["torch"])
    x = torch.randn(3)
    assert_same(jitted(x), rows(x))
    assert operators(forward(jitted)).count("aten.select_scatter.default") == 1  # the zeros are a constant


def test_gradients_of_rows_written_in_a_loop_are_eagers() -> None:
    def rows(x: Tensor) -> Tensor:
        out = torch.zeros(6, 3)
        for number in range(1, 6):
            out[number] = out[number - 1] * 0.5 + x * number
        return out

    found = []
    for function in (rows, sg.jit(rows, executors=["torch"])):
        x = torch.linspace(-1, 1, 3).requires_grad_()
        result = function(x)
        (result * result).sum().backward()
        found.append((result.detach(), x.grad))
    assert_same(*found)


def test_an_average_of_parameters_is_written_in_place() -> None:
    class Average(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.average: Tensor
            self.register_buffer("average", torch.zeros(5, 3))
            self.weight = torch.nn.Parameter(torch.ones(5, 3))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.average.mul_(0.9).add_(self.weight, alpha=0.1)
            return x * 2

    ours, eagers = Average(), Average()
    jitted = sg.jit(ours, executors=["torch"])
    for _ in range(2):
        jitted(torch.ones(3))
        eagers(torch.ones(3))
    assert_same(ours.average, eagers.average)
    assert ours.average._version == eagers.average._version
    assert forward(jitted).writes == {"t_average": 2}


def reads_the_old_value_later(k: Tensor) -> Tensor:
    old = k * 1
    before = k.clone()
    k[0] = 7.0
    return old.sum() + before[0].sum()


def returns_the_new_value_apart(k: Tensor) -> Tensor:
    new = k.index_fill(0, torch.tensor([0]), 2.0)
    k.copy_(new)
    return new


def returns_a_row_of_its_own(k: Tensor) -> Tensor:
    out = k.clone()
    out[1] = 3.0
    return out[0]


def shifts_rows(k: Tensor) -> Tensor:
    k[:-1] = k[1:].clone()
    k[0] = k[1]
    return k


def writes_what_it_reads(k: Tensor) -> Tensor:
    k.mul_(k)
    k[0].add_(k[1])
    return k[0]


def swaps_rows(k: Tensor) -> None:
    k[[0, 1]] = k[[1, 0]]


def returns_a_view_of_what_it_wrote(k: Tensor) -> tuple[Tensor, Tensor]:
    k[0] = 1.0
    return k, k[1:]


PROGRAMS = [
    reads_the_old_value_later,
    returns_the_new_value_apart,
    returns_a_row_of_its_own,
    shifts_rows,
    writes_what_it_reads,
    swaps_rows,
    returns_a_view_of_what_it_wrote,
]


@in_turn(layout=["dense", "transposed", "part"], function=PROGRAMS)
def test_results_and_what_shares_memory_are_eagers(function: Callable[[Tensor], Any], layout: str) -> None:
    jitted = sg.jit(function, executors=["torch"])
    found = []
    for run in (jitted, function):
        memory = torch.arange(30.0).reshape(5, 6)
        k = {"dense": memory, "transposed": memory.t(), "part": memory[1:4, 1:5]}[layout]
        results = [run(k), run(k)]
        shared = [[one.untyped_storage()._cdata == k.untyped_storage()._cdata for one in _tensors(r)] for r in results]
        found.append((results, memory, shared, k._version))
    assert_same(*[one[:2] for one in found])
    assert found[0][2:] == found[1][2:]


def test_an_alias_that_somebody_else_holds_sees_the_write() -> None:
    jitted = sg.jit(by_integer, executors=["torch"])
    k, x = cache(), torch.ones(2, 4, 1, 16)
    held = k[:, :, 5]
    for _ in range(2):
        held.zero_()
        jitted(k, x, torch.tensor([0]))
        assert (held == 1).all()


def test_inputs_that_share_memory_are_written_as_in_eager() -> None:
    def function(k: Tensor, other: Tensor) -> Tensor:
        k[0] = 1.0
        return other.sum()

    found = []
    for run in (sg.jit(function, executors=["torch"]), function):
        memory = torch.zeros(4, 3)
        found.append((run(memory, memory), run(memory[1:], memory), run(memory.clone(), memory), memory))
    assert_same(*found)


@pytest.mark.filterwarnings("ignore::switchgear.errors.FallbackWarning")
def test_an_expanded_input_raises_eagers_error() -> None:
    def function(k: Tensor) -> None:
        k[0].mul_(2)
        k.mul_(2)

    jitted = sg.jit(function, executors=["torch"], fallback="eager")
    jitted(torch.zeros(3, 4))
    k = torch.ones(1).expand(3)
    with pytest.raises(RuntimeError, match="single memory location"):
        jitted(k)
    assert k.tolist() == [2.0] * 3  # as eager leaves it


def test_a_backward_reads_what_was_there_before_a_write() -> None:
    def function(k: Tensor, x: Tensor) -> Tensor:
        y = (k * x).sum()
        k[0] = 5.0
        return y

    found = []
    for run in (sg.jit(function, executors=["torch"]), function):
        k, x = torch.arange(6.0).reshape(2, 3), torch.ones(3, requires_grad=True)
        try:
            run(k, x).backward()
        except RuntimeError:
            assert run is function  # eager saves `k` itself, and refuses
        found.append(k)
    assert_same(*found)


def test_a_write_under_no_grad_to_a_parameter_keeps_it_a_leaf() -> None:
    @torch.no_grad()
    def function(w: Tensor) -> None:
        w[0] = 2.0

    w = torch.zeros(2, 3, requires_grad=True)
    jitted = sg.jit(function, executors=["torch"])
    jitted(w)
    assert (w.requires_grad, w.is_leaf, w.grad_fn, w._version) == (True, True, None, 1)
    (w * 2).sum().backward()
    assert w.grad is not None


def test_a_call_that_raises_midway_leaves_what_eager_leaves() -> None:
    def function(k: Tensor, index: Tensor) -> Tensor:
        k[0] = 1.0
        picked = k.index_select(0, index)
        k[1] = 1.0
        return picked

    found = []
    jitted = sg.jit(function, executors=["torch"])
    jitted(torch.zeros(3, 2), torch.tensor([0]))
    for run in (jitted, function):
        k = torch.zeros(3, 2)
        with pytest.raises(IndexError):
            run(k, torch.tensor([9]))
        found.append(k)
    assert_same(*found)


def test_the_verifier_refuses_a_read_of_the_old_value() -> None:
    def function(k: Tensor) -> Tensor:
        k[0] = 1.0
        return k * 2

    jitted = sg.jit(function, executors=["torch"])
    jitted(torch.zeros(3, 2))
    trace = next(one for one in sg.last_traces(jitted) if one.provenance[-1].name == "reinplace")
    verify(trace)
    (renaming,) = [line for line in trace.bound_symbols if line.symbol is AFTER]
    old = {renaming.output.name: renaming.args[1]}
    lines = tuple(line.reading(old) for line in trace.bound_symbols)
    broken = Trace(trace.name, trace.inputs, trace.outputs, lines, trace.tensors, writes=trace.writes)
    with pytest.raises(InvalidTrace, match="used after its memory is written to"):
        verify(broken)


def test_the_pass_takes_time_in_proportion_to_the_lines() -> None:
    def lines_of(count: int) -> Trace:
        def rows(k: Tensor, x: Tensor) -> None:
            for number in range(count):
                k[number % 8] = x + number

        jitted = sg.jit(rows, executors=["torch"])
        jitted(torch.zeros(8, 3), torch.ones(3))
        return next(one for one in sg.last_traces(jitted) if one.provenance[-1].name == "dead_code")

    steps = []
    for count in (20, 80):
        trace = lines_of(count)
        with Counted() as counted:
            reinplace(trace, trace.bound_symbols, {0: 0})
        steps.append(counted.calls)
    assert steps[1] < 5 * steps[0]


class Counted:
    """Counts calls of Python functions."""

    calls = 0

    def __enter__(self) -> Counted:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        self.calls += event == "call"


def test_random_programs_are_eagers() -> None:
    found = [examine(seed, ("torch",)) for seed in range(12)]
    assert [detail for outcome, detail in found if outcome == "different"] == []
    assert sum(outcome == "in place" for outcome, _ in found) > 4
