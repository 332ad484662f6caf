"""A whole training step in one trace: forward, `torch.autograd.grad`, AdamW's update of parameters and moments.

Trains two copies of one MLP with the same function, once in eager and once jitted, and prints the losses side by side.
Ends with status 1 if a loss, a trained parameter or a moment is not bit-identical to eager's. `--trace` prints the
trace.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import switchgear as sg
from examples.comparison import report

INPUTS, CLASSES = 16, 4
LR, BETA1, BETA2, EPS, WEIGHT_DECAY = 1e-2, 0.9, 0.999, 1e-8, 1e-2


@dataclass(frozen=True, slots=True)
class State:
    """The parameters of an MLP, weights and biases in turn, and AdamW's moments and step counts, one per parameter."""

    parameters: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    steps: list[Tensor]

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the state."""
        return [*self.parameters, *self.exp_avgs, *self.exp_avg_sqs, *self.steps]


Step = Callable[[State, Tensor, Tensor], Tensor]


def initial(width: int = 32, hidden: int = 2) -> State:
    """Return a fresh MLP, and AdamW's state before its first step."""
    sizes = [INPUTS, *[width] * hidden, CLASSES]
    modules = [torch.nn.Linear(into, out) for into, out in itertools.pairwise(sizes)]
    parameters: list[Tensor] = [parameter for module in modules for parameter in module.parameters()]
    zeros = [torch.zeros_like(parameter, requires_grad=False) for parameter in parameters]
    return State(parameters, zeros, copy.deepcopy(zeros), [torch.zeros(()) for _ in parameters])


def mlp(parameters: list[Tensor], x: Tensor) -> Tensor:
    """Run the MLP."""
    pairs = list(zip(parameters[::2], parameters[1::2], strict=True))
    for weight, bias in pairs[:-1]:
        x = F.gelu(F.linear(x, weight, bias))
    return F.linear(x, *pairs[-1])


def adamw(state: State, gradients: Sequence[Tensor]) -> None:
    """Update like `torch.optim.adamw.adamw` for step counts that stay tensors, as with its `capturable=True`."""
    each = zip(state.parameters, gradients, state.exp_avgs, state.exp_avg_sqs, state.steps, strict=True)
    for parameter, gradient, exp_avg, exp_avg_sq, step in each:
        step += 1
        parameter.mul_(1 - LR * WEIGHT_DECAY)
        exp_avg.lerp_(gradient, 1 - BETA1)
        exp_avg_sq.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        step_size_neg = (LR / (1 - BETA1**step)).neg()
        correction = (1 - BETA2**step).sqrt()
        denominator = (exp_avg_sq.sqrt() / (correction * step_size_neg)).add_(EPS / step_size_neg)
        parameter.addcdiv_(exp_avg, denominator)


def whole_step(state: State, x: Tensor, y: Tensor) -> Tensor:
    """Run one training step; return the loss before the step."""
    loss = F.cross_entropy(mlp(state.parameters, x), y)
    gradients = torch.autograd.grad(loss, state.parameters)
    with torch.no_grad():
        adamw(state, gradients)
    return loss.detach()


def batch(generator: torch.Generator, size: int = 32) -> tuple[Tensor, Tensor]:
    """Return random points, whose class is the largest of a few coordinates."""
    x = torch.randn(size, INPUTS, generator=generator)
    return x, x[:, :CLASSES].argmax(1)


def train(step: Step, state: State, steps: int) -> tuple[list[Tensor], list[Tensor]]:
    """Take the steps on a copy of the state; return the loss of every step, and the tensors of the state at the end."""
    state = copy.deepcopy(state)
    generator = torch.Generator().manual_seed(0)
    losses = [step(state, *batch(generator)) for _ in range(steps)]
    return losses, [tensor.detach() for tensor in state.tensors()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train in both ways; return 0 if all results are bit-identical to eager's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps (default: %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print the trace of the step")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    state = initial()
    jitted = sg.jit(whole_step, executors=["torch"])
    trained = {"eager": train(whole_step, state, options.steps), "switchgear": train(jitted, state, options.steps)}
    if options.trace:
        print(sg.last_traces(jitted)[-1].python(link=True))
    return report(trained)


if __name__ == "__main__":
    sys.exit(main())
