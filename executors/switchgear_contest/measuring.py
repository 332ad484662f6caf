"""Measuring: how long functions take on tensors of given layouts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import switchgear as sg

#: Seconds that the repetitions together take at most, unless the fewest take longer.
BUDGET = 0.3
#: Seconds of calls from which on the clock is precise.
BATCH = 1e-3
FEWEST, MOST = 2, 15


def seconds_of(
    functions: Sequence[Callable[..., Any]],
    numbers: Sequence[int],
    layouts: Sequence[sg.TensorProxy],
    devices: Collection[torch.device],
) -> list[float]:
    """Seconds that a call of each takes, of `numbers` and tensors of these layouts: the least of repetitions in turn.

    `devices` are those that they run on. Floating-point values are between 0.1 and 0.9, all others zero, which is an
    index wherever there is one; no two tensors share memory. Random streams, modes and warnings are as before.
    """
    accelerators = [device for device in devices if device.type != "cpu"]
    with _undisturbed(accelerators):
        generators = {device: torch.Generator(device).manual_seed(0) for device in devices}
        tensors = [_made_up(proxy, generators[proxy.device]) for proxy in layouts]

        def seconds(function: Callable[..., Any], calls: int) -> float:
            _synchronize(accelerators)
            start = time.perf_counter()
            for _ in range(calls):
                function(*numbers, *tensors)
            _synchronize(accelerators)
            return (time.perf_counter() - start) / calls

        for function in functions:
            seconds(function, 1)  # what is made on first use
        least = [seconds(function, 1) for function in functions]
        calls = [max(1, int(BATCH / one)) for one in least]
        turn = sum(count * one for count, one in zip(calls, least, strict=True))
        for _ in range(min(MOST, max(FEWEST, int(BUDGET / turn))) - 1):
            again = [seconds(function, count) for function, count in zip(functions, calls, strict=True)]
            least = [min(pair) for pair in zip(least, again, strict=True)]
    return least


@contextmanager
def _undisturbed(accelerators: Sequence[torch.device]) -> Iterator[None]:
    kind = accelerators[0].type if accelerators else "cuda"
    with (
        torch.inference_mode(False),
        sg.real_dispatch(),
        torch.random.fork_rng(accelerators, device_type=kind),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _made_up(proxy: sg.TensorProxy, generator: torch.Generator) -> torch.Tensor:
    if proxy.is_conj or proxy.is_neg:
        raise ValueError("no tensor is made up that is conjugated or negated lazily")
    reach = 1 + sum((size - 1) * stride for size, stride in zip(proxy.shape, proxy.stride, strict=True))
    if proxy.is_differentiable:
        values = torch.rand(max(reach, 0), generator=generator, dtype=torch.float32, device=proxy.device)
        values = values.mul_(0.8).add_(0.1).to(proxy.dtype)
    else:
        values = torch.zeros(max(reach, 0), dtype=proxy.dtype, device=proxy.device)
    return values.as_strided(proxy.shape, proxy.stride)


def _synchronize(accelerators: Sequence[torch.device]) -> None:
    for device in accelerators:
        torch.accelerator.synchronize(device)
