"""`sg.differentiate`: the grad pass alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg

EXAMPLE = Path(__file__).parents[2] / "plugins" / "switchgear-example" / "src"


@pytest.fixture(scope="module")
def example() -> Any:
    """The rules of the example plugin, as a stranger's package has them: one in each of the three forms."""
    name = "switchgear_example"
    if name not in sys.modules:
        location = EXAMPLE / name / "__init__.py"
        spec = importlib.util.spec_from_file_location(name, location, submodule_search_locations=[str(location.parent)])
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def composed(x: Tensor, w: Tensor) -> Tensor:
    return F.silu(F.gelu(x @ w, approximate="tanh")).sin()


def operands() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)


def results_of(graphs: Any, values: dict[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The defined outputs of a joint trace for random tangents, and the tangents by name."""
    generator = torch.Generator().manual_seed(0)
    tangents: dict[str, Tensor] = {}
    for proxy in graphs.joint.inputs:
        if proxy.name not in values:
            tangents[proxy.name] = torch.randn(proxy.shape, generator=generator, dtype=proxy.dtype)
    results = graphs.joint.function()(*[{**values, **tangents}[proxy.name] for proxy in graphs.joint.inputs])
    return [result for result in results if result is not None], tangents


def by_autograd(function: Any, leaves: list[Tensor], tangents: list[Tensor], order: int) -> list[Tensor]:
    """The results and their gradients, those too differentiated, as autograd computes them."""
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    results, remaining = [function(*leaves)], iter(tangents)
    for number in range(order):
        grads = [next(remaining) for _ in results]
        results += torch.autograd.grad(results, leaves, grads, create_graph=number + 1 < order)
    return results


@pytest.mark.parametrize("order", [1, 2, 3])
def test_orders(order: int) -> None:
    x, w = operands()
    graph = torch.fx.symbolic_trace(composed)
    graphs = sg.differentiate(graph, (x, w), order=order)
    results, tangents = results_of(graphs, {"x": x, "w": w})
    expected = by_autograd(composed, [x, w], [*tangents.values()], order)
    assert len(results) == len(expected) == 2 * order + 1
    for result, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-11, atol=1e-11)
    if order == 1:
        assert all(map(torch.equal, results, expected))


def test_a_stranger_s_rules_in_three_forms(example: Any) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return example.fast_gelu(composed(x, w))  # type: ignore[no-any-return]

    def in_pytorch(x: Tensor, w: Tensor) -> Tensor:
        return F.gelu(composed(x, w), approximate="tanh")

    x, w = operands()
    graph = torch.fx.symbolic_trace(function)
    for order in (1, 2):
        graphs = sg.differentiate(graph, (x, w), grad_rules=example.rules.table, order=order)
        assert graphs.backward is not None
        rules = {str(link.rule) for item in graphs.backward.bound_symbols for link in item.links}
        assert rules >= {"example (pullback)", "example (transform)", "example (augmented)"}
        results, tangents = results_of(graphs, {"x": x, "w": w})
        expected = by_autograd(in_pytorch, [x, w], [*tangents.values()], order)
        for result, reference in zip(results, expected, strict=True):
            torch.testing.assert_close(result, reference, rtol=1e-9, atol=1e-9)


def test_without_a_rule_the_operator_is_named(example: Any) -> None:
    graph = torch.fx.symbolic_trace(lambda x: example.fast_gelu(x).sum())
    with pytest.raises(sg.errors.NotDifferentiable, match=r"switchgear_example.fast_gelu.default"):
        sg.differentiate(graph, (torch.randn(3),))


@pytest.mark.parametrize("kind", ["function", "module", "graph", "exported", "trace"])
def test_programs_of_every_kind(kind: str) -> None:
    layer, x = nn.Linear(4, 5), torch.randn(3, 4)
    if kind == "exported":
        graphs = sg.differentiate(torch.export.export(layer, (x,)))
    elif kind == "graph":
        graphs = sg.differentiate(torch.fx.symbolic_trace(layer), (x,))
    elif kind == "trace":
        f = sg.jit(layer, executors=["torch"])
        f(x)
        graphs = sg.differentiate(sg.last_traces(f)[0])
    else:
        graphs = sg.differentiate(layer if kind == "module" else lambda x: layer(x), (x,))
    signature = graphs.signature
    if kind in ("module", "graph", "exported"):
        assert {*signature.gradients} == {*signature.parameters} == {"weight", "bias"}
    else:
        assert len(signature.gradients) == 2
    assert len(signature.tangents) == 1
    weight, bias = layer.weight.detach(), layer.bias.detach()
    shapes = {tuple(x.shape): x, tuple(weight.shape): weight, tuple(bias.shape): bias}
    values = {proxy.name: shapes[tuple(proxy.shape)] for proxy in graphs.joint.inputs if tuple(proxy.shape) in shapes}
    results, tangents = results_of(graphs, values)
    (tangent,) = tangents.values()
    expected = torch.autograd.grad(layer(x), [layer.weight, layer.bias], tangent)
    by_shape = {tuple(result.shape): result for result in results[1:]}
    assert torch.equal(by_shape[5, 4], expected[0])
    assert torch.equal(by_shape[(5,)], expected[1])


def test_inputs_and_outputs_by_name_and_position() -> None:
    def two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x @ w

    x, w = operands()
    graph = torch.fx.symbolic_trace(two)
    graphs = sg.differentiate(graph, (x, w), inputs=["w"], outputs=[1])
    assert [*graphs.signature.gradients] == ["w"]
    assert len(graphs.signature.tangents) == 1
    graphs = sg.differentiate(two, (x, w), inputs=["x"])
    assert [*graphs.signature.gradients] == ["x"]
    assert len(graphs.signature.tangents) == 2


class Views(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = x.sin()
        return {"row": hidden[0], "same": x, "turned": [x.t()]}


def test_views_and_inputs_among_the_results() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    graphs = sg.differentiate(Views(), (x,))
    assert [*graphs.signature.outputs] == ["row", "same", "turned.0"]
    results, tangents = results_of(graphs, {graphs.signature.inputs["x"]: x})
    leaf = x.clone().requires_grad_()
    returned = Views()(leaf)
    outputs = [returned["row"], returned["same"], *returned["turned"]]
    expected = torch.autograd.grad(outputs, leaf, [*tangents.values()])
    assert all(map(torch.equal, results, [*(output.detach() for output in outputs), *expected]))


def test_a_function_with_operators_that_only_a_rule_differentiates(example: Any) -> None:
    graphs = sg.differentiate(lambda x: example.fast_gelu(x).sum(), (torch.randn(3),), grad_rules=example.rules.table)
    assert len(graphs.signature.gradients) == 1


def test_invalid_arguments_are_named() -> None:
    graph, x = torch.fx.symbolic_trace(composed), operands()
    with pytest.raises(sg.errors.InvalidInput, match="inputs names 'y', and the program has x, w"):
        sg.differentiate(graph, x, inputs=["y"])
    with pytest.raises(sg.errors.InvalidInput, match="outputs names 3"):
        sg.differentiate(graph, x, outputs=[3])
    with pytest.raises(sg.errors.InvalidInput, match="order=0"):
        sg.differentiate(graph, x, order=0)
    with pytest.raises(sg.errors.InvalidInput, match="no output depends on the inputs"):
        sg.differentiate(lambda x: x.detach() * 2, (x[0],))
    with pytest.raises(sg.errors.InvalidInput, match="which has no floating-point numbers"):
        sg.differentiate(lambda x: x * 2, (torch.arange(3),), inputs=[0])
    with pytest.raises(sg.errors.UnknownExecutor):
        sg.differentiate(graph, x, executors=["nobody"])


def test_a_function_that_writes_to_its_inputs_is_refused() -> None:
    with pytest.raises(sg.errors.Unsupported, match=r"sg\.joint"):
        sg.differentiate(lambda x, y: y.mul_(x), (torch.randn(3, requires_grad=True), torch.randn(3)))
