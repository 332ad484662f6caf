"""A forward of one operator runs under PyTorch's own autograd, unless somebody has a part in its gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import switchgear as sg

T = torch.Tensor
F = torch.nn.functional
OPERATORS: dict[str, Callable[[T], T]] = {
    "a number": lambda x: x + 1,
    "a product": lambda x: x * x,
    "a sum": lambda x: x.sum(0),
    "the greatest": lambda x: x.max(0)[0],
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, (3,)),
    "matrices": lambda x: x @ x,
}


def leaf() -> T:
    return torch.linspace(-2, 3, 9, dtype=torch.float64).reshape(3, 3).requires_grad_()


def halve(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Another factor in a product of a gradient."""
    body = [
        replace(line, args=(line.args[0], 0.5)) if line.symbol.name == "aten.mul.Tensor" else line
        for line in trace.bound_symbols
    ]
    return replace(trace, bound_symbols=tuple(body)) if context.gives_gradients else trace


def twice(x: T) -> T:
    return x * 2


def scaled() -> sg.Table:
    table = sg.Table("mine")

    @table.grad_rule(torch.mul)
    def rule(x: T, factor: float) -> Any:
        return torch.mul(x, factor), lambda grad: grad * 10

    return table


def product() -> sg.Executor:
    table = sg.Table("mine")

    @table.implementation(torch.ops.aten.mul.Tensor)
    def mul(x: T, factor: float) -> T:
        return torch.mul(x, factor)

    return sg.Executor("mine", table=table)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_graph_is_eagers(name: str) -> None:
    function = OPERATORS[name]
    jitted = sg.jit(function, executors=["torch"])
    results = []
    for call in (function, jitted, jitted):
        x = leaf()
        seen: list[torch.Size] = []

        def note(tensor: T, seen: list[torch.Size] = seen) -> T:
            seen.append(tensor.shape)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            y = call(x)
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * first).sum(), x)
        results.append((y, first, second, type(y.grad_fn), seen))
    expected, *found = results
    for result in found:
        assert all(map(torch.equal, result[:3], expected[:3]))
        assert result[3:] == expected[3:]
    assert "by PyTorch's autograd itself" in str(sg.explain(jitted))


@pytest.mark.parametrize(
    ("options", "gradient"),
    [
        ({"grad_rules": scaled()}, 10.0),
        ({"executors": [product(), "torch"]}, 2.0),
        ({"passes": [sg.passes.PassPlacement("halve", "before_fusion", halve)]}, 0.5),
        ({"check": True}, 2.0),
        ({"memory": "lean"}, 2.0),
    ],
    ids=["a rule", "an executor", "a pass", "check", "memory"],
)
def test_who_has_a_part_in_a_gradient_keeps_it(options: dict[str, Any], gradient: float) -> None:
    jitted = sg.jit(twice, **{"executors": ["torch"], **options})
    for _ in range(3):
        x = leaf()
        y = jitted(x)
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full_like(x, gradient))
    assert "Switchgear" in type(y.grad_fn).__name__
    assert "by PyTorch's autograd itself" not in str(sg.explain(jitted))


def test_a_kernel_in_c_has_its_part_in_a_gradient() -> None:
    table = sg.Table("mine")
    table.implementation(torch.ops.aten.cos.default)(torch.sin)
    jitted = sg.jit(lambda x: x.sin(), executors=[sg.Executor("mine", table=table), "torch"])
    for _ in range(2):
        x = leaf()
        jitted(x).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, x.detach().sin())


@pytest.mark.parametrize(
    "function", [lambda x: x.exp() + 1, lambda x: x.detach() + x, lambda x: torch.where(x > 0, x, 1)]
)
def test_what_is_more_than_one_operator_has_a_node_of_ours(function: Callable[[T], T]) -> None:
    jitted = sg.jit(function, executors=["torch"])
    assert "Switchgear" in type(jitted(leaf()).grad_fn).__name__
