"""MAML: meta-learn the start of a small regressor by differentiating through its inner update.

Each task is a sine of some amplitude and phase. The inner step adapts the parameters to a task by one step of gradient
descent. The outer loss is a function of the adapted parameters, so its gradient holds second derivatives. Trains three
copies of one start and prints the outer losses side by side: in eager PyTorch; with the task's loss jitted and
`torch.autograd.grad(..., create_graph=True)` around the jitted loss; with `sg.grad` for the inner step inside
`sg.value_and_grad` for the outer one. Ends with status 1 if a loss or a trained parameter is not eager's:
bit-identical nested, up to rounding around.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from examples.comparison import report

Parameters = list[Tensor]
Task = tuple[Tensor, Tensor, Tensor, Tensor]
#: Maps parameters and tasks to the outer loss and its gradients.
Outer = Callable[[Parameters, list[Task]], tuple[Tensor, Sequence[Tensor]]]
WIDTH, TASKS, SHOTS = 16, 4, 10
INNER_RATE, OUTER_RATE = 0.05, 0.02


def start() -> Parameters:
    """Return the parameters of a regressor with two hidden layers."""
    sizes = (1, WIDTH, WIDTH, 1)
    layers = [(torch.randn(out, into) / into**0.5, torch.zeros(out)) for into, out in itertools.pairwise(sizes)]
    return [tensor for layer in layers for tensor in layer]


def tasks() -> list[Task]:
    """Return some sines, each with points for adaptation and points for the outer loss."""
    found = []
    for amplitude, phase in torch.rand(TASKS, 2).tolist():
        x, other = 6 * torch.rand(2, SHOTS, 1) - 3
        found.append((x, amplitude * torch.sin(x + phase), other, amplitude * torch.sin(other + phase)))
    return found


def loss(parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
    """Return the regressor's error on some points."""
    w1, b1, w2, b2, w3, b3 = parameters
    hidden = torch.tanh(F.linear(torch.tanh(F.linear(x, w1, b1)), w2, b2))
    return F.mse_loss(F.linear(hidden, w3, b3), y)


def descend(parameters: Parameters, gradients: Sequence[Tensor]) -> Parameters:
    """Take one step of gradient descent, out of place: the result is a differentiable function of the arguments."""
    return [parameter - INNER_RATE * gradient for parameter, gradient in zip(parameters, gradients, strict=True)]


def by_autograd(task_loss: Callable[[Parameters, Tensor, Tensor], Tensor]) -> Outer:
    """Return both derivatives by PyTorch's autograd, the inner one differentiable."""

    def outer(parameters: Parameters, tasks: list[Task]) -> tuple[Tensor, Sequence[Tensor]]:
        parameters = [parameter.detach().requires_grad_() for parameter in parameters]
        losses = []
        for x, y, other_x, other_y in tasks:
            gradients = torch.autograd.grad(task_loss(parameters, x, y), parameters, create_graph=True)
            losses.append(task_loss(descend(parameters, gradients), other_x, other_y))
        value = torch.stack(losses).mean()
        return value.detach(), torch.autograd.grad(value, parameters)

    return outer


def eager() -> Outer:
    """Return the reference."""
    return by_autograd(loss)


def around() -> Outer:
    """Jit the loss of a task, and differentiate outside."""
    return by_autograd(sg.jit(loss, executors=["torch"]))


def nested() -> Outer:
    """Return one trace of the inner steps of all tasks, the outer loss and its gradients."""
    inner = sg.grad(loss, executors=["torch"])

    def outer_loss(parameters: Parameters, tasks: list[Task]) -> Tensor:
        losses = [loss(descend(parameters, inner(parameters, x, y)), *other) for x, y, *other in tasks]
        return torch.stack(losses).mean()

    outer: Outer = sg.value_and_grad(outer_loss, executors=["torch"])
    return outer


WAYS: dict[str, Callable[[], Outer]] = {"eager": eager, "around": around, "nested": nested}


def train(way: Callable[[], Outer], parameters: Parameters, steps: int) -> tuple[list[Tensor], list[Tensor]]:
    """Move the start by gradient descent on the outer loss; return the loss of every step, and the final start."""
    parameters = [parameter.clone() for parameter in parameters]
    outer = way()
    torch.manual_seed(0)
    losses = []
    for _ in range(steps):
        value, gradients = outer(parameters, tasks())
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=OUTER_RATE)
        losses.append(value)
    return losses, parameters


def main(arguments: Sequence[str] | None = None) -> int:
    """Train in every way; return 0 if all results are as equal to eager's as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="outer steps (default: %(default)s)")
    steps = parser.parse_args(arguments).steps
    torch.manual_seed(0)
    parameters = start()
    return report({name: train(way, parameters, steps) for name, way in WAYS.items()})


if __name__ == "__main__":
    sys.exit(main())
