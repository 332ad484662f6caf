"""Traces of functions of DTensors, in one process: guards, executors, derivatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

if not dist.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import switchgear as sg
from switchgear_core.errors import Unsupported
from switchgear_core.ir.choice import Implementation
from switchgear_runtime.last_call import compiler_of
from tests.distributed.dtensors import ROWS, loss, summary
from tests.falling_back import falls_back
from tests.subclasses.classes import Pair


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceMesh]:
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def leaf(mesh: DeviceMesh, *shape: int, at: Placement = ROWS) -> Any:
    torch.manual_seed(sum(shape))
    return distribute_tensor(torch.randn(*shape), mesh, [at]).requires_grad_()


def executed(trace: sg.Trace) -> list[sg.BoundSymbol]:
    """Return the calls of a program, also those inside of series of lines with DTensors."""
    return [part for line in trace.bound_symbols if line.outputs for part in line.subsymbols or (line,)]


def jitted(function: Any, **options: Any) -> Any:
    return sg.jit(function, fallback="error", **{"executors": ["torch"]} | options)


def test_the_trace_has_the_users_calls(mesh: DeviceMesh) -> None:
    f = jitted(lambda x, w: (x @ w).redistribute(placements=[Replicate()]).relu())
    f(leaf(mesh, 2, 4), leaf(mesh, 4, 4))
    trace = sg.last_traces(f)[-1]
    names = [line.symbol.name for line in executed(trace)]
    assert names == ["aten.mm.default", "switchgear_dtensors.placed.move", "aten.relu.default"]
    assert "constant redistribute(" in str(trace)


def test_other_placements_are_compiled_anew(mesh: DeviceMesh) -> None:
    f = jitted(lambda x: x * 2 if x.placements[0].is_shard() else x * 3)
    for at in (Shard(0), Replicate(), Shard(1), Shard(0)):
        x = leaf(mesh, 4, 4, at=at)
        assert summary(f(x)) == summary(x * (3 if at == Replicate() else 2))
    assert len(compiler_of(f).cache._order) == 3


def test_a_parameter_with_other_placements_is_compiled_anew(mesh: DeviceMesh) -> None:
    model = torch.nn.Linear(4, 4)
    f = jitted(model)
    for at in (Replicate(), Shard(0)):
        weight, bias = distribute_tensor(torch.ones(4, 4), mesh, [at]), distribute_tensor(torch.ones(4), mesh, [at])
        model.weight, model.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
        x = leaf(mesh, 2, 4)
        assert summary(f(x)) == summary(model(x))


def test_sizes_change(mesh: DeviceMesh) -> None:
    def function(x: Any) -> Any:
        return (x.sin() @ x.t()).redistribute(placements=[Replicate()]).relu()

    f = jitted(function)
    for count in (4, 6, 8, 4):
        results = []
        for call in (function, f):
            x = leaf(mesh, count, 3)
            y = call(x)
            loss(y).backward()
            results.append(summary([y, x.grad]))
        assert results[0] == results[1]


class Counting(sg.Executor):
    """An executor that runs every call that it is offered, by PyTorch."""

    def claim(self, bound_symbol: Any, entry: Any) -> Any:
        return Implementation(self.name, bound_symbol.symbol.fn)


def test_other_executors_get_plain_tensors_alone(mesh: DeviceMesh) -> None:
    f = jitted(lambda x: ((x @ x).sin().to_local() * 2).cos(), executors=[Counting("counting"), "torch"])
    x = leaf(mesh, 4, 4)
    f(x).sum().backward()
    owners: dict[str, list[str]] = {}
    for trace in (sg.last_traces(f)[-1], sg.last_backward_traces(f)[-1]):
        for line in executed(trace):
            if line.implementation is not None:
                owners.setdefault(line.implementation.owner, []).append(line.symbol.name.split(".")[1])
    plain = ["mul", "cos", "sin", "neg", "mul", "mul"]
    whole = ["mm", "sin", "placed", "placed", "cos", "mul", "t", "mm", "mm", "add"]
    assert owners == {"counting": plain, "torch": whole}


def second(call: Any, mesh: DeviceMesh) -> Any:
    x = leaf(mesh, 4, 4)
    (gradient,) = torch.autograd.grad(loss(call(x)), x, create_graph=True)
    loss(gradient).backward()
    return x.grad.to_local()


def test_second_derivatives(mesh: DeviceMesh) -> None:
    function = lambda x: (x @ x).sin()  # noqa: E731
    torch.testing.assert_close(second(jitted(function), mesh), second(function, mesh))


@pytest.mark.parametrize("name", ["redistributed", "local"])
def test_second_derivatives_of_communication_are_eagers(mesh: DeviceMesh, name: str) -> None:
    functions = {
        "redistributed": lambda x: (x * x).redistribute(placements=[Replicate()]).sin(),
        "local": lambda x: (x * x).to_local().sin(),
    }
    function = functions[name]
    with falls_back("is differentiated"):
        derivative = second(sg.jit(function, executors=["torch"]), mesh)
    torch.testing.assert_close(derivative, second(function, mesh))


def test_a_dtensor_around_a_subclass_falls_back(mesh: DeviceMesh) -> None:
    x = DTensor.from_local(Pair(torch.ones(2), torch.ones(2)), mesh, [Shard(0)])
    with pytest.raises(Unsupported, match="a DTensor around a Pair"):
        jitted(lambda x: x * 2)(x)
