"""`sg.joint`: the traces of a call with their signature, next to PyTorch's joint graphs, and to and from `torch.fx`."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from switchgear_graphs import from_fx, to_fx
from tests.graphs.beside_aot import differences
from tests.models.small import KINDS


class Layer(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.twin = nn.Linear(3, 4)
        self.twin.weight = self.linear.weight
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
        self.count.add_(1)
        hidden = F.dropout(F.gelu(self.linear(x)), 0.5)
        return {"loss": hidden.sum(), "hidden": [hidden], "first": hidden[0], "turned": x.t(), "number": 3}


def jitted(function: Any) -> Any:
    return sg.jit(function, executors=["torch"])


def test_signature_of_a_module() -> None:
    signature = sg.joint(jitted(Layer()), torch.ones(2, 3)).signature
    weight, bias = signature.parameters["linear.weight"], signature.parameters["linear.bias"]
    assert signature.parameters == {
        "linear.weight": weight,
        "twin.weight": weight,
        "linear.bias": bias,
    }
    assert [*signature.buffers] == ["count"]
    assert [*signature.inputs] == ["x"]
    assert [*signature.outputs] == ["loss", "hidden.0", "first", "turned"]
    assert {*signature.tangents} == {"loss", "hidden.0"}
    assert signature.gradients.keys() == signature.parameters.keys()
    assert signature.loss == "loss"
    assert [*signature.mutations] == ["count"]
    assert signature.aliases == {"first": "hidden.0", "turned": "x"}
    assert len(signature.random) >= 1


def test_traces_compute_what_the_signature_says() -> None:
    layer, x = Layer().eval(), torch.randn(2, 3)
    graphs = sg.joint(jitted(layer), x)
    signature = graphs.signature
    values: dict[str, Tensor] = {name: layer.get_parameter(path) for path, name in signature.parameters.items()}
    values |= {signature.buffers["count"]: layer.get_buffer("count"), signature.inputs["x"]: x}
    values |= {signature.tangents["loss"]: torch.tensor(1.0), signature.tangents["hidden.0"]: torch.zeros(2, 4)}
    torch.manual_seed(1)
    with torch.no_grad():
        results = graphs.joint.function()(*[values[proxy.name] for proxy in graphs.joint.inputs])
    by_name = {p.name: value for p, value in zip(graphs.joint.outputs, results, strict=True) if p is not None}
    torch.manual_seed(1)
    outputs = layer(x)
    outputs["loss"].backward()
    assert torch.equal(by_name[signature.outputs["loss"]], outputs["loss"])
    assert layer.linear.weight.grad is not None
    assert torch.equal(by_name[signature.gradients["linear.weight"]], layer.linear.weight.grad)
    assert torch.equal(by_name[signature.mutations["count"]], layer.count)


def test_forward_and_backward_make_the_joint_trace() -> None:
    graphs = sg.joint(jitted(Layer().eval()), torch.randn(2, 3))
    assert graphs.backward is not None
    saved = len(graphs.backward.inputs) - len(graphs.signature.tangents)
    assert [proxy.name for proxy in graphs.backward.inputs[:saved] if proxy] == [
        proxy.name for proxy in graphs.forward.outputs[-saved:] if proxy
    ]


def test_a_call_without_gradients_has_a_forward_alone() -> None:
    graphs = sg.joint(jitted(torch.sin), torch.ones(3))
    assert graphs.backward is None
    assert not graphs.signature.gradients
    assert graphs.joint is graphs.forward
    with pytest.raises(sg.errors.InvalidInput, match="no trace 'backward'"):
        graphs.graph_module("backward")


def test_a_call_that_is_not_captured_is_refused_with_the_reason() -> None:
    def branches(x: Tensor) -> Tensor:
        return x if x.sum().item() > 0 else -x

    with pytest.raises(sg.errors.InvalidInput, match="not captured as a whole: DataDependent"):
        sg.joint(jitted(branches), torch.ones(3, requires_grad=True))


def test_nothing_runs_and_nothing_is_kept() -> None:
    layer = Layer()
    function = jitted(layer)
    sg.joint(function, torch.ones(2, 3))
    assert layer.count == 0
    assert sg.cache_info(function).calls == 0


@pytest.mark.parametrize("name", KINDS)
def test_models_have_the_edges_of_pytorch_s_joint_graph(name: str) -> None:
    """By name; and the traces survive a round trip through `torch.fx` with the same bits."""
    assert not differences(name)


def test_modes_survive_a_graph() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.exp()
        return (x * scale).sum()

    x = torch.randn(3, requires_grad=True)
    f = jitted(function)
    f(x)
    (result,) = to_fx(sg.last_traces(f)[0])(x)
    assert torch.equal(torch.autograd.grad(result, x)[0], x.detach().exp())


def test_a_write_unseen_by_autograd_keeps_its_gradient() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            x.mul_(2)
        return (x * 3).sum()

    x = torch.ones(3, requires_grad=True)
    f = jitted(function)
    f(x)
    result, written = to_fx(sg.last_traces(f)[0])(x)
    assert torch.equal(written, x * 2)
    assert torch.equal(result, (x * 6).sum())
    assert torch.equal(torch.autograd.grad(result, x)[0], torch.full((3,), 3.0))


def test_claimed_lines_are_no_graph() -> None:
    f = jitted(lambda x: x.sin().sum())
    f(torch.ones(3, requires_grad=True))
    with pytest.raises(sg.errors.Unsupported, match="claimed by an executor"):
        to_fx(sg.last_traces(f)[-1])


def test_parameters_of_a_graph_are_inputs_of_its_trace() -> None:
    graph = torch.fx.symbolic_trace(nn.Linear(3, 4))
    trace, parameters = from_fx(graph, [torch.ones(2, 3)])
    assert [*parameters.values()] == ["weight", "bias"]
    assert [proxy.name for proxy in trace.inputs] == ["input_1", *parameters]


def unknown(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy() * 2)


def test_a_node_that_nobody_knows_is_named() -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_function(unknown, (graph.placeholder("x"),)))
    with pytest.raises(sg.errors.Unsupported, match=r"node unknown .*numpy"):
        from_fx(torch.fx.GraphModule({}, graph), [torch.ones(3)])


def test_a_graph_without_metadata_says_so() -> None:
    with pytest.raises(sg.errors.InvalidInput, match="placeholder x has no metadata"):
        from_fx(torch.fx.symbolic_trace(lambda x: x + 1))


def test_traces_pickle() -> None:
    f = jitted(Layer().eval())
    f(torch.ones(2, 3))["loss"].backward()
    x = torch.randn(2, 3)
    for trace in (*sg.last_traces(f), *sg.last_backward_traces(f)):
        again = pickle.loads(pickle.dumps(trace))
        assert again.python() == trace.python()
        assert again.bound_symbols[-1].links == () or again.bound_symbols[-1].links[0].rule is not None
    first = sg.last_traces(f)[0]
    values = [x, torch.zeros(1), torch.randn(4, 3), torch.randn(4)]
    outcomes = []
    for trace in (first, pickle.loads(pickle.dumps(first))):
        torch.manual_seed(0)
        outcomes.append(trace.function()(*values))
    assert all(map(torch.equal, *outcomes))
