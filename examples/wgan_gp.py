"""WGAN-GP: training steps of a critic, whose loss holds the norm of its own gradient (the gradient penalty).

Trains three copies of one critic against a fixed generator and prints their losses side by side: in eager PyTorch; with
the critic jitted and `torch.autograd.grad(..., create_graph=True)` outside; with the whole loss jitted, `sg.grad` and
the random interpolation inside. Ends with status 1 if a loss or a trained parameter is not eager's: bit-identical
inside, up to rounding around.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import switchgear as sg
from examples.comparison import report

Critic = Callable[[Tensor], Tensor]
Slope = Callable[[Critic, Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
PENALTY = 10.0


def networks() -> tuple[nn.Module, nn.Module]:
    """Build a critic of points of the plane, and a generator of such points."""
    critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
    return critic, nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2)).requires_grad_(False)


def critic_loss(critic: Critic, slope_of: Slope, real: Tensor, fake: Tensor) -> Tensor:
    """Return the Wasserstein loss, plus a penalty where the critic's slope between real and fake is not one."""
    between = torch.lerp(real, fake, torch.rand(real.shape[0], 1))
    penalty: Tensor = (torch.linalg.vector_norm(slope_of(critic, between), dim=1) - 1).square().mean()
    return critic(fake).mean() - critic(real).mean() + PENALTY * penalty


def by_autograd(critic: Critic, points: Tensor) -> Tensor:
    """Return the critic's slope at each point, a function of the critic's parameters like its value."""
    points = points.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    return slope


def by_sg_grad(critic: Critic, points: Tensor) -> Tensor:
    """Return the critic's slope at each point, by `sg.grad`, as part of a trace."""
    slope: Tensor = sg.grad(lambda points: critic(points).sum())(points)
    return slope


def eager(critic: nn.Module) -> Loss:
    """Return the reference."""
    return lambda real, fake: critic_loss(critic, by_autograd, real, fake)


def around(critic: nn.Module) -> Loss:
    """Jit the critic, and differentiate outside."""
    jitted = sg.jit(critic, executors=["torch"])
    return lambda real, fake: critic_loss(jitted, by_autograd, real, fake)


def inside(critic: nn.Module) -> Loss:
    """Return one trace of three calls of the critic and the gradient of one call."""
    loss: Loss = sg.jit(lambda real, fake: critic_loss(critic, by_sg_grad, real, fake), executors=["torch"])
    return loss


WAYS: dict[str, Callable[[nn.Module], Loss]] = {"eager": eager, "around": around, "inside": inside}


def train(
    way: Callable[[nn.Module], Loss], networks: tuple[nn.Module, nn.Module], steps: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Train a copy of the critic; return the loss of every step, and the trained parameters."""
    critic, generator = copy.deepcopy(networks)
    loss_of = way(critic)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    torch.manual_seed(0)
    losses = []
    for _ in range(steps):
        real = F.normalize(torch.randn(64, 2)) + 0.05 * torch.randn(64, 2)  # points near a circle
        loss = loss_of(real, generator(torch.randn(64, 4)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [parameter.detach() for parameter in critic.parameters()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train in every way; return 0 if all results are as equal to eager's as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="training steps (default: %(default)s)")
    steps = parser.parse_args(arguments).steps
    torch.manual_seed(0)
    start = networks()
    return report({name: train(way, start, steps) for name, way in WAYS.items()})


if __name__ == "__main__":
    sys.exit(main())
