"""Lines with DTensors on local tensors, in one process: from the second call on, results and views as in the first."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist

if not dist.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import loss_parallel

import switchgear as sg
from switchgear_dtensors.local import ON_LOCAL, OnLocal
from tests.distributed.dtensors import ROWS, loss, summary
from tests.distributed.test_dtensors import jitted, leaf, mesh  # noqa: F401


def lines(traces: Any) -> list[OnLocal]:
    """Return the series of lines with DTensors of a program."""
    calls = [line for line in traces[-2].bound_symbols if line.symbol == ON_LOCAL]
    return [line.args[0] for line in calls]


def operators(series: OnLocal) -> list[list[str]]:
    """Return the operators of each program, with a star before those on DTensors."""
    programs = []
    for trace in series.traces:
        assert trace is not None
        calls = [line for line in trace.bound_symbols if line.symbol.name.startswith("aten.")]
        programs.append(
            [f"{'' if 'local' in str(call.inputs) else '*'}{call.symbol.name.split('.')[1]}" for call in calls]
        )
    return programs


def trained(call: Any, *args: Any, at: Placement | None = None) -> Any:
    """Return the results of a call, and the gradients of the arguments, for gradients with the given placements."""
    y = call(*args)
    y.backward((y * 3).detach().redistribute(placements=y.placements if at is None else [at]))
    gradients = [arg.grad for arg in args]
    for arg in args:
        arg.grad = None
    return summary([y, *gradients])


def test_later_calls_run_on_local_tensors(mesh: DeviceMesh) -> None:  # noqa: F811
    function = lambda x, w: (x @ w).relu() * 2  # noqa: E731
    f, args = jitted(function), (leaf(mesh, 2, 4), leaf(mesh, 4, 4, at=Replicate()))
    assert [trained(f, *args) for _ in range(3)] == [trained(function, *args)] * 3
    (forward,), (backward,) = lines(sg.last_traces(f)), lines(sg.last_backward_traces(f))
    assert operators(forward) == [["mm", "relu", "mul"]]
    assert operators(backward) == [["mul", "threshold_backward", "t", "mm", "t", "mm"]]
    assert "local2 = torch.ops.aten.mm.default(local0, local1)" in str(forward.traces[0])


def test_operators_that_communicate_get_dtensors(mesh: DeviceMesh) -> None:  # noqa: F811
    function = lambda x, y: (x.sin() @ y).cos()  # noqa: E731
    f, x, y = jitted(function), leaf(mesh, 4, 4), leaf(mesh, 4, 4)
    assert [trained(f, x, y) for _ in range(3)] == [trained(function, x, y)] * 3
    (forward,) = lines(sg.last_traces(f))
    assert operators(forward) == [["sin", "*mm", "cos"]]


def test_gradients_with_other_placements_have_a_program_of_their_own(mesh: DeviceMesh) -> None:  # noqa: F811
    function = lambda x: x.sin() * 2  # noqa: E731
    f, x = jitted(function), leaf(mesh, 4, 4)
    for _ in range(2):
        for at in (ROWS, Shard(1), Replicate()):
            assert trained(f, x, at=at) == trained(function, x, at=at)
    (backward,) = lines(sg.last_backward_traces(f))
    assert len(backward.traces) == 3


def test_one_gradient_for_two_results_then_two(mesh: DeviceMesh) -> None:  # noqa: F811
    def function(x: Any) -> Any:
        return x * 2, x.sin()

    f, x = jitted(function), leaf(mesh, 2, 2)
    combine: Any
    for combine in (lambda a, b: a + b, lambda a, b: a * 2 + b, lambda a, b: a + b):
        gradients = [torch.autograd.grad(combine(*call(x)), x, x.detach())[0] for call in (f, function)]
        assert summary(gradients[0]) == summary(gradients[1])


def test_handlers_of_loss_parallel_have_a_program_of_their_own(mesh: DeviceMesh) -> None:  # noqa: F811
    def function(x: Any) -> Any:
        return x.log_softmax(-1) * 3

    f, x = jitted(function), leaf(mesh, 4, 4, at=Shard(1)).detach()
    for _ in range(2):
        assert summary(f(x)) == summary(function(x))
        with loss_parallel():
            assert summary(f(x)) == summary(function(x))
    (forward,) = lines(sg.last_traces(f))
    assert len(forward.traces) == 2


def test_there_is_no_program_where_all_communicates(mesh: DeviceMesh) -> None:  # noqa: F811
    f, x = jitted(lambda x: x @ x), leaf(mesh, 4, 4)
    assert [summary(f(x)) for _ in range(3)] == [summary(x @ x)] * 3
    (forward,) = lines(sg.last_traces(f))
    assert forward.traces == [None]


def test_results_that_are_views_stay_views(mesh: DeviceMesh) -> None:  # noqa: F811
    def function(x: Any) -> Any:
        return (x * 2).t(), x.t()

    f, x = jitted(function), leaf(mesh, 2, 4)
    for _ in range(3):
        for result, expected in zip(f(x), function(x), strict=True):
            assert summary(result) == summary(expected)
            assert result.to_local()._is_view() == expected.to_local()._is_view()
        assert f(x)[1]._base is x


def test_a_write_to_a_saved_view_is_noticed(mesh: DeviceMesh) -> None:  # noqa: F811
    f, x = jitted(lambda x, w: (w.t() * x).sin()), leaf(mesh, 4, 4)
    w = torch.nn.Parameter(leaf(mesh, 4, 4))
    for _ in range(3):
        y = loss(f(x, w))
        with torch.no_grad():
            w.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_modes_of_the_user_see_dtensors(mesh: DeviceMesh) -> None:  # noqa: F811
    function = lambda x: (x @ x).sin()  # noqa: E731
    f, x = jitted(function), leaf(mesh, 4, 4)
    counts = []
    for call in (f, f, function):
        y = loss(call(x))
        with CommDebugMode() as mode:
            y.backward()
        counts.append(mode.get_comm_counts())
    assert counts[0] == counts[1] == counts[2]
    (backward,) = lines(sg.last_backward_traces(f))
    assert not backward.traces


def test_values_are_freed_after_their_last_use(mesh: DeviceMesh) -> None:  # noqa: F811
    f, x = jitted(lambda x: x.sin().cos().tan().exp()), leaf(mesh, 4, 4).detach()
    f(x)
    (forward,) = lines(sg.last_traces(f))
    assert forward.traces[0] is not None
    most = alive = 0
    for line in forward.traces[0].bound_symbols:
        alive += len(line.outputs) if line.outputs else -len(line.inputs)
        most = max(most, alive)
    assert most <= 2


def test_traces_pickle(mesh: DeviceMesh) -> None:  # noqa: F811
    f, x = jitted(lambda x: x.sin().cos()), leaf(mesh, 4, 4).detach()
    f(x)
    trace = pickle.loads(pickle.dumps(sg.last_traces(f)[-1]))
    assert str(trace) == str(sg.last_traces(f)[-1])
    assert summary(trace.function()(x)[0]) == summary(f(x))


def test_a_failing_call_raises_as_eager_does(mesh: DeviceMesh) -> None:  # noqa: F811
    table = leaf(mesh, 4, 2, at=Replicate())

    def function(index: Any) -> Any:
        return torch.nn.functional.embedding(index, table).sin()

    f = jitted(function)
    index = leaf(mesh, 3, at=Replicate()).detach().to(torch.int64) * 0
    for _ in range(2):
        assert summary(f(index)) == summary(function(index))
    with pytest.raises(IndexError, match="out of range"):
        f(index + 9)
