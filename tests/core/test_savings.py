"""Saved tensors by default: those that eager mode saves; of overwritten storages the smallest copies."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import switchgear as sg
from switchgear_core.grad.partition import overwritten_values, partition
from switchgear_core.ir.aliasing import is_view
from switchgear_core.ir.proxy import TensorProxy, is_dense
from switchgear_core.ir.symbol import RECOMPUTED, BoundSymbol, Symbol
from switchgear_core.ir.trace import Names, Trace
from switchgear_core.registry.savings import AS_EAGER, Problem
from switchgear_runtime.last_call import last_entry
from tests.core.training import backward, leaf, lines
from tests.oracle import assert_trains_as_eager, step

aten = torch.ops.aten
CONVOLUTION = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
MODELS = {
    "MLP": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)), (6, 8)),
    "encoder layer": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    "CNN": (
        nn.Sequential(*CONVOLUTION),
        (2, 3, 8, 8),
    ),
}


def eager_bytes(model: nn.Module, x: Tensor) -> int:
    """The bytes of the storages that PyTorch's autograd saves, without inputs and parameters."""
    storages: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(x)
    inputs = {tensor.untyped_storage().data_ptr() for tensor in (x, *model.parameters())}
    return sum(size for storage, size in storages.items() if storage not in inputs)


@pytest.mark.parametrize("name", MODELS)
def test_models_save_the_bytes_of_eager_and_recompute_nothing(name: str) -> None:
    model, shape = MODELS[name]
    x = torch.randn(shape)
    jitted = assert_trains_as_eager(model, x, memory="eager")
    bridge = last_entry(jitted).bridge
    assert bridge is not None
    parts = partition(bridge.training.joint)
    assert [proxy.name for proxy in parts.saved] == [proxy.name for proxy in bridge.training.saved]
    assert parts.saved_bytes == eager_bytes(model, x)
    assert not [item for item in lines(backward(jitted)) if RECOMPUTED in item.tags]


def test_one_operator_may_run_under_pytorchs_autograd() -> None:
    x = leaf(3)
    jitted = assert_trains_as_eager(torch.sin, x, memory="eager")
    assert type(jitted(x).grad_fn) is type(torch.sin(x).grad_fn)


def test_values_that_share_an_inputs_memory_are_overwritten_with_it() -> None:
    jitted = sg.jit(lambda x: x.t().exp(), executors=["torch"], strict=True)
    step(jitted, leaf(2, 3))
    joint = next(trace for trace in sg.last_traces(jitted) if trace.name == "joint")
    transposed, name = joint.bound_symbols[0].output, joint.inputs[0].name
    assert overwritten_values(joint.bound_symbols[:2], frozenset({name})) == {name, transposed.name}
    assert overwritten_values(joint.bound_symbols, frozenset()) == frozenset()


CALLS = {"view": aten.t.default, "strided": aten.as_strided.default, "new": aten.exp.default}


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Lines of nothing that could run, but for metadata: views, dense and with holes, and new values."""

    def value(name: str, *, may_have_holes: bool) -> TensorProxy:
        stride = draw(st.sampled_from([1, 2])) if may_have_holes else 1
        return TensorProxy(name, (draw(st.integers(2, 40)),), (stride,), torch.float32, torch.device("cpu"))

    inputs = (value("in0", may_have_holes=False), value("in1", may_have_holes=False))
    values, body = [*inputs], []
    for number in range(draw(st.integers(1, 7))):
        fn = CALLS[draw(st.sampled_from(sorted(CALLS)))]
        made = value(f"t{number}", may_have_holes=fn is aten.t.default)
        body.append(BoundSymbol(Symbol(str(fn), fn), (draw(st.sampled_from(values)),), {}, made))
        values.append(made)
    read = tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=4, unique=True)))
    written = draw(st.sampled_from([frozenset[str](), frozenset({"in0"}), frozenset({"in0", "in1"})]))
    forward, trace = tuple(body), Trace("joint", inputs, (), ())
    overwritten = overwritten_values(forward, written)
    return Problem(trace, 0, forward, (), read, overwritten, {}, Names(), False, int)


def suffices(problem: Problem, saved: set[str]) -> bool:
    """Whether the values that are read can be had of the saved ones, by views alone."""
    had = saved | {proxy.name for proxy in problem.trace.inputs} - problem.overwritten
    for item in problem.forward:
        name = item.output.name
        moved = item.symbol.fn is aten.as_strided.default and name in problem.overwritten
        if is_view(item) and not moved and item.inputs[0].name in had:
            had.add(name)
    return had.issuperset(proxy.name for proxy in problem.read)


def savable(problem: Problem) -> Iterable[TensorProxy]:
    """The values of which a copy has the layout of the original, or which need no copy and are no views."""
    yield from (proxy for proxy in problem.trace.inputs if proxy.name in problem.overwritten)
    for item in problem.forward:
        is_copied = item.output.name in problem.overwritten
        is_strided = item.symbol.fn is aten.as_strided.default
        if not is_view(item) or (is_copied and (is_strided or is_dense(item.output))):
            yield item.output


def bytes_of(problem: Problem, saved: Iterable[str]) -> int:
    names = set(saved)
    return sum(proxy.bytes for proxy in savable(problem) if proxy.name in names)


def subsets(names: Sequence[str]) -> Iterable[set[str]]:
    return (set(some) for size in range(len(names) + 1) for some in itertools.combinations(names, size))


@settings(max_examples=300, deadline=None)
@given(problems())
def test_the_bytes_are_the_fewest_that_views_can_be_had_of(problem: Problem) -> None:
    names = [proxy.name for proxy in savable(problem)]
    saved = AS_EAGER.choose(problem).saved
    assert saved <= set(names)
    assert suffices(problem, {*saved})
    least = min(bytes_of(problem, some) for some in subsets(names) if suffices(problem, some))
    assert bytes_of(problem, saved) == least


@pytest.mark.parametrize(
    ("function", "saved"),
    [
        (lambda x, cache: x * cache[2], ["torch.Tensor.__getitem__"]),  # of the cache, the part that is read
        (lambda x, cache: x * cache.t().exp()[2] * cache.exp()[0], ["torch.exp", "torch.exp"]),
        (lambda x, cache: x * cache.view(16)[::2][:4] * cache[:, 0], ["input"]),  # parts with holes, of one copy
        (lambda x, cache: (x * cache).sum(0) + (x * cache.t()).sum(0), ["input"]),
    ],
)
def test_of_an_overwritten_input_the_smallest_copy_is_saved(function: Any, saved: list[str]) -> None:
    def writing(x: Tensor, cache: Tensor) -> Tensor:
        y: Tensor = function(x, cache)
        cache.add_(1)
        return y

    jitted = sg.jit(writing, executors=["torch"], memory="eager")
    x, cache = leaf(4), torch.randn(4, 4)
    expected = torch.autograd.grad(function(x, cache).sum(), x)
    jitted(x, cache).sum().backward()
    assert torch.equal(expected[0], x.grad)  # type: ignore[arg-type]
    found = [value for value in sg.last_saved(jitted) if not value.alive]
    assert sorted(value.origin.partition(" at ")[0] for value in found) == saved
