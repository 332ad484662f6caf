"""`torch.export`, in and out."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from switchgear_graphs import with_functions
from tests.graphs.beside_aot import call_of
from tests.models.small import KINDS
from tests.oracle import differences


class Model(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor, scale: float = 2.0) -> dict[str, Any]:
        self.count.add_(1)
        hidden = self.norm(F.gelu(self.linear(x), approximate="tanh"))
        return {"loss": hidden.sum() * scale, "parts": (hidden, hidden[0])}


def two_steps(model: Any, run: Any, batch: dict[str, Any]) -> object:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(3)
    steps = []
    for _ in range(2):
        optimizer.zero_grad()
        output = run(**batch)
        loss = output["loss"] if "loss" in output else output["logits"].sum()
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        steps.append(copy.deepcopy((loss.detach(), gradients)))
        optimizer.step()
    return steps, dict(model.state_dict())


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
@pytest.mark.parametrize("kind", ["operators", "functions"])
@pytest.mark.parametrize("name", KINDS)
def test_exported_models_train_as_in_eager(name: str, kind: str) -> None:
    model, batch = call_of(KINDS[name])
    with mock.patch.object(torch.compiler, "_is_compiling_flag", True):
        exported = torch.export.export(model, (), batch, strict=False)
    base, twin = copy.deepcopy(exported.module()), copy.deepcopy(exported.module())
    if kind == "functions":
        with_functions(twin)
    expected = two_steps(base, base, batch)
    assert not [*differences(expected, two_steps(twin, sg.jit(twin, executors=["torch"]), batch), name)]


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
@pytest.mark.parametrize("name", KINDS)
def test_models_are_exported(name: str) -> None:
    model, batch = call_of(KINDS[name])
    exported = sg.export(sg.jit(model.eval(), executors=["torch"]), (), batch)
    assert not [*differences(dict(model(**batch)), dict(exported.module()(**batch)), name)]


@pytest.mark.parametrize("target", [torch.ops.aten.gelu.default, F.gelu])
def test_an_exported_program_trains_under_a_rule_of_the_user(target: Any) -> None:
    """For the operator of the graph, or for the function that makes the same call."""
    rules = sg.Table("own")

    @rules.grad_rule(target)
    def doubled(x: Tensor, approximate: str = "none") -> Any:
        return target(x, approximate=approximate), lambda grad: grad * 2

    module = torch.export.export(nn.Sequential(nn.Linear(3, 4), nn.GELU()), (torch.ones(2, 3),)).module()
    if target is F.gelu:
        with_functions(module)
    f = sg.jit(module, executors=["torch"], grad_rules=rules)
    x = torch.randn(2, 3)
    f(x).sum().backward()
    weight = dict(module.named_parameters())["0.weight"]
    torch.testing.assert_close(weight.grad, (x.sum(0) * 2).expand(4, 3))


class Calls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5, 4))
        self.norm = nn.LayerNorm(4)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = F.silu(self.norm(F.embedding(ids, self.weight)))
        mean, variance = torch.zeros(4), torch.ones(4) * 3
        return F.batch_norm(hidden.flatten(0, 1), mean, variance).softmax(-1)


def test_only_functions_that_make_the_same_call_take_the_place_of_operators() -> None:
    """`F.embedding` and `F.batch_norm` have other orders of arguments, though all of the same types."""
    ids = torch.zeros(2, 3, dtype=torch.long)
    graph = with_functions(torch.export.export(Calls(), (ids,)).module())
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert targets >= {F.silu, F.layer_norm}
    assert targets.isdisjoint({F.embedding, F.batch_norm})
    assert torch.equal(graph(ids), Calls()(ids))


def test_names_and_writes_are_the_original_s() -> None:
    model, x = Model(), torch.randn(2, 3)
    exported = sg.export(sg.jit(model, executors=["torch"]), (x,), {"scale": 3.0})
    assert {*exported.state_dict} == {*model.state_dict()}
    assert model.count == 0
    program, base = exported.module(), copy.deepcopy(model)
    assert not [*differences(base(x, scale=3.0), program(x, scale=3.0), "model")]
    assert not [*differences(dict(base.state_dict()), dict(program.state_dict()), "state")]


def test_a_plugin_s_operators_are_kept_or_resolved() -> None:
    @torch.library.custom_op("graphs_tests::fast", mutates_args=())
    def fast(x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    @fast.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    table = sg.Table("own")

    @table.implementation(F.gelu)
    def gelu(x: Tensor, approximate: str = "none") -> Tensor:
        return fast(x)  # type: ignore[no-any-return]

    own = sg.Executor("own", table=table)
    f = sg.jit(Model().eval(), executors=[own, "torch"])
    x = torch.randn(2, 3)
    for keep in (False, True):
        exported = sg.export(f, (x,), keep=keep)
        names = {str(node.target) for node in exported.graph.nodes}
        assert ("graphs_tests.fast.default" in names) is keep
        assert ("aten.gelu.default" in names) is not keep


def test_a_program_that_reads_data_is_refused() -> None:
    def branches(x: Tensor) -> Tensor:
        return x if x.sum().item() > 0 else -x

    with pytest.raises(sg.errors.InvalidInput, match="not captured as a whole"):
        sg.export(sg.jit(branches, executors=["torch"]), (torch.ones(3),))
