"""Grad outputs that stay undefined: what was differentiated for all serves the others, where it can."""

from __future__ import annotations

import copy
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import switchgear as sg
from switchgear_core.grad.differentiate import differentiate
from switchgear_core.passes import pipeline

Outputs = tuple[Tensor, ...]


class Classifier(nn.Module):
    """Loss and logits, as models of Transformers return them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))

    def forward(self, x: Tensor, labels: Tensor) -> Outputs:
        logits = self.layers(x)
        return nn.functional.cross_entropy(logits.float().view(-1, 3), labels), logits


def twice_used(x: Tensor, labels: Tensor, layers: nn.Module) -> Outputs:
    """What is returned is used twice, so that three gradients are added."""
    logits = layers(x)
    return nn.functional.cross_entropy(logits, labels) + logits.square().mean(), logits


class Twice(Classifier):
    def forward(self, x: Tensor, labels: Tensor) -> Outputs:
        return twice_used(x, labels, self.layers)


class Apart(Classifier):
    """The second output is no part of the first."""

    def forward(self, x: Tensor, labels: Tensor) -> Outputs:
        hidden = self.layers[0](x)
        loss = nn.functional.cross_entropy(self.layers[2](hidden), labels)
        return loss, hidden.sin(), hidden


class Transposed(Classifier):
    """The two gradients of what is returned lie in memory otherwise."""

    def forward(self, x: Tensor, labels: Tensor) -> Outputs:
        logits = self.layers(x)
        return (logits.t() @ logits).sum() + logits.t().sum(), logits


def _grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


PATTERNS: dict[str, Callable[[Outputs], Tensor]] = {
    "the first": lambda outputs: outputs[0],
    "the last": lambda outputs: outputs[-1].square().sum(),
    "both": lambda outputs: outputs[0] + outputs[-1].square().sum(),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", [Classifier, Twice, Apart, Transposed])
def test_gradients_are_those_of_eager(kind: type[nn.Module], pattern: str) -> None:
    torch.manual_seed(0)
    eager = kind()
    jitted = sg.jit(copy.deepcopy(eager), executors=["torch"])
    x, labels = torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0])
    for model in (eager, jitted):
        PATTERNS[pattern](model(x, labels)).backward()
    for one, two in zip(eager.parameters(), jitted.parameters(), strict=True):
        assert one.grad is two.grad is None or torch.equal(_grad(one), _grad(two))


@pytest.mark.parametrize(
    ("kind", "pattern", "times"),
    [(Classifier, "the first", 1), (Twice, "the first", 1), (Classifier, "both", 1), (Classifier, "the last", 2)],
)
def test_what_was_differentiated_serves_fewer_grad_outputs(kind: type[nn.Module], pattern: str, times: int) -> None:
    jitted = sg.jit(kind(), executors=["torch"])
    with mock.patch.object(pipeline, "differentiate", wraps=differentiate) as differentiated:
        PATTERNS[pattern](jitted(torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0]))).backward()
    assert differentiated.call_count == times


def test_symbolic_sizes() -> None:
    eager = Classifier()
    jitted = sg.jit(copy.deepcopy(eager), executors=["torch"], dynamic=True)
    for size in (5, 6, 9):
        x, labels = torch.randn(size, 4), torch.arange(size) % 3
        for model in (eager, jitted):
            model.zero_grad()
            model(x, labels)[0].backward()
        for one, two in zip(eager.parameters(), jitted.parameters(), strict=True):
            assert torch.equal(_grad(one), _grad(two))
    assert sg.cache_info(jitted).entries == 1


class Overwritten(nn.Module):
    """What was there before the last `copy_` gets zeros, constants of the trace."""

    running: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        self.register_buffer("running", torch.zeros(4))

    def forward(self) -> Tensor:
        self.running.copy_(self.bias)
        self.running.copy_(self.bias)
        return self.weight * 0.5


def test_zeros_beside_what_is_undefined_are_undefined_too() -> None:
    for module in (Overwritten(), sg.jit(Overwritten(), executors=["torch"], strict=True)):
        for _ in range(3):
            result = module()
            found = torch.autograd.grad(result, [*module.parameters()], torch.ones(4), allow_unused=True)
            assert found[0] is not None
            assert found[1] is None
