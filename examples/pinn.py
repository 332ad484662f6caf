"""A physics-informed network: solve u'' = -π² sin(πx), u(0) = u(1) = 0, by the second derivative of the network.

Trains three copies of one network and prints their losses side by side: in eager PyTorch; with the network jitted and
`torch.autograd.grad(..., create_graph=True)` outside; with the whole loss jitted, both derivatives inside. Ends with
status 1 if a loss or a trained parameter is not eager's: bit-identical inside, up to rounding around.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import switchgear as sg
from examples.comparison import report

Loss = Callable[[Tensor], Tensor]


def network() -> nn.Module:
    """Build u(x), smooth enough to be differentiated twice."""
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def physics(net: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the network's error in the equation at the points `x`, and in its values at the ends."""
    u = net(x)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
    residual = ddu + torch.pi**2 * torch.sin(torch.pi * x)
    return residual.square().mean() + 10 * net(torch.tensor([[0.0], [1.0]])).square().mean()


def eager(net: nn.Module) -> Loss:
    """Return the reference."""
    return lambda x: physics(net, x)


def around(net: nn.Module) -> Loss:
    """Jit the network, and differentiate outside."""
    jitted = sg.jit(net, executors=["torch"])
    return lambda x: physics(jitted, x)


def inside(net: nn.Module) -> Loss:
    """Return one trace of the network and its two derivatives; its backward is the third."""
    loss: Loss = sg.jit(lambda x: physics(net, x), executors=["torch"])
    return loss


WAYS: dict[str, Callable[[nn.Module], Loss]] = {"eager": eager, "around": around, "inside": inside}


def train(way: Callable[[nn.Module], Loss], net: nn.Module, steps: int) -> tuple[list[Tensor], list[Tensor]]:
    """Train a copy of the network on random points; return the loss of every step, and the trained parameters."""
    net = copy.deepcopy(net)
    loss_at = way(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        loss = loss_at(torch.rand(64, 1, generator=generator).requires_grad_())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [parameter.detach() for parameter in net.parameters()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train in every way; return 0 if all results are as equal to eager's as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps (default: %(default)s)")
    steps = parser.parse_args(arguments).steps
    torch.manual_seed(0)
    net = network()
    return report({name: train(way, net, steps) for name, way in WAYS.items()})


if __name__ == "__main__":
    sys.exit(main())
