"""Bytes and time of a training step's loss compared with eager: `python -m switchgear_chunked_loss`."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import switchgear as sg


def peak_bytes(step: Callable[[], object]) -> int:
    """Return the peak of a step's allocated bytes on the CPU, from the allocations in PyTorch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        step()
    alive = most = 0
    for event in sorted(
        (event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"),
        key=lambda event: event.start_ns(),
    ):
        alive += event.nbytes()
        most = max(most, alive)
    return most


def main() -> None:
    """Print bytes and time, and their ratios to eager."""
    parser = argparse.ArgumentParser(
        prog="python -m switchgear_chunked_loss", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--classes", type=int, default=32_000)
    parser.add_argument("--tokens", type=int, default=2_048)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(options.tokens, options.features, requires_grad=True)
    weight = (torch.randn(options.classes, options.features) / options.features**0.5).requires_grad_()
    target = torch.randint(options.classes, (options.tokens,))

    def loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(x, weight), target)

    chunked = sg.jit(loss, executors=["chunked_loss", "torch"])
    losses: dict[str, Callable[..., Tensor]] = {"eager": loss, "chunked": chunked}
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):  # PyTorch 2.13
        keywords: dict[str, Any] = {"options": torch.nn.LinearCrossEntropyOptions()}
        losses["F.linear_cross_entropy, chunked"] = lambda x, weight, target: F.linear_cross_entropy(
            x, weight, target, **keywords
        )

    def step(function: Callable[..., Tensor]) -> Tensor:
        value = function(x, weight, target)
        value.backward()
        return value

    def cleared(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        x.grad = weight.grad = None
        return function

    for function in losses.values():
        torch.testing.assert_close(step(cleared(function)), step(cleared(loss)))
    seconds: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(options.rounds):
        for name, function in losses.items():
            cleared(function)
            begun = time.perf_counter()
            step(function)
            seconds[name].append(time.perf_counter() - begun)
    peaks = {name: peak_bytes(partial(step, cleared(function))) for name, function in losses.items()}
    print(f"{'':32}{'peak MB':>10}{'of eager':>10}{'median ms':>12}{'of eager':>10}{'least to most':>20}")
    for name, took in seconds.items():
        peak, base = peaks[name], peaks["eager"]
        ratios = [value / reference for value, reference in zip(took, seconds["eager"], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(
            f"{name:32}{peak / 1e6:10.1f}{peak / base:10.2f}{1e3 * statistics.median(took):12.1f}"
            f"{statistics.median(ratios):10.2f}{spread:>20}"
        )


if __name__ == "__main__":
    main()
