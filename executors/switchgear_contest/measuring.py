"""Measuring: the time of functions on tensors of given layouts, and a comparison of their results."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

import switchgear as sg

#: Maximal seconds for all repetitions, unless the fewest take longer.
BUDGET = 0.3
#: Maximal seconds while repetitions differ.
PATIENCE = 1.0
#: Minimal seconds of calls for a precise clock.
BATCH = 1e-3
FEWEST, MOST, MOST_UNSTEADY = 2, 15, 60
#: Maximal ratio of the second smallest time to the smallest.
SPREAD = 1.2
#: Minimal share of processor time of a function without interference.
SHARE = 0.5

#: Function that describes a difference between results for some arguments and the expected results; empty if equal.
Unlike = Callable[[Sequence[Any], Any, Any], str]


@dataclass(slots=True)
class Measurement:
    """Seconds of a call of each function, infinity for failures, and the reasons by place.

    `is_steady`: repetitions agree, and nothing else used the processor meanwhile.
    """

    seconds: list[float]
    faults: dict[int, str]
    is_steady: bool


@dataclass(slots=True)
class _Runner:
    function: Callable[[], object]
    accelerators: Sequence[torch.device]
    #: Seconds per call, and processor seconds, of each repetition.
    samples: list[tuple[float, float]] = field(default_factory=list)

    @property
    def least(self) -> float:
        return min(self.samples)[0]

    @property
    def calls(self) -> int:
        """The number of calls in each repetition."""
        return max(1, int(BATCH / self.least)) if self.samples else 1

    @property
    def is_steady(self) -> bool:
        (least, busy), (second, _) = sorted(self.samples)[:2]
        return second <= SPREAD * least and (bool(self.accelerators) or busy >= SHARE * least)

    def repeat(self) -> None:
        calls = self.calls
        _synchronize(self.accelerators)
        start, busy = time.perf_counter(), time.process_time()
        for _ in range(calls):
            self.function()
        _synchronize(self.accelerators)
        cpu_seconds = time.process_time() - busy
        self.samples.append(((time.perf_counter() - start) / calls, cpu_seconds / calls))


def measured(
    functions: Sequence[Callable[..., Any]],
    numbers: Sequence[int],
    layouts: Sequence[sg.TensorProxy],
    devices: Collection[torch.device],
    unlike: Unlike,
) -> Measurement:
    """Measure a call of each function, on `numbers` and tensors of these layouts: the minimum of repetitions in turn.

    The last function is the reference for the others, on `devices`. Floating-point values are between 0.1 and 0.9, all
    others zero, a valid index everywhere; no two tensors share memory. Random streams, modes and warnings do not
    change.

    Raises the last function's exceptions.
    """
    accelerators = [device for device in devices if device.type != "cpu"]
    with _undisturbed(accelerators):
        generators = {device: torch.Generator(device).manual_seed(0) for device in devices}
        tensors = [_made_up(proxy, generators[proxy.device]) for proxy in layouts]
        arguments = [*numbers, *tensors]
        faults = _faults(functions, arguments, unlike)
        runners = {
            place: _Runner(lambda function=function: function(*arguments), accelerators)  # type: ignore[misc]
            for place, function in enumerate(functions)
            if place not in faults
        }
        is_steady = len(runners) > 1 and _repeat([*runners.values()])
    seconds = [
        runners[place].least if place in runners and len(runners) > 1 else math.inf for place in range(len(functions))
    ]
    return Measurement(seconds, faults, is_steady)


def _faults(functions: Sequence[Callable[..., Any]], arguments: Sequence[Any], unlike: Unlike) -> dict[int, str]:
    """Return the faults of first calls, which also create lazily created objects."""
    *others, operators = functions
    expected = operators(*arguments)
    # random numbers, or uninitialised memory
    is_known = not unlike(arguments, operators(*arguments), expected)
    faults: dict[int, str] = {}
    for place, function in enumerate(others):
        try:
            results = function(*arguments)
        except Exception as error:
            faults[place] = f"it raised {type(error).__name__}: {error}"
            continue
        if is_known and (fault := unlike(arguments, results, expected)):
            faults[place] = fault
    return faults


def _repeat(runners: Sequence[_Runner]) -> bool:
    """Run all in turn until the budget is spent, or longer while repetitions differ; return whether they agree."""
    start = time.perf_counter()
    for count in range(MOST_UNSTEADY):
        if count >= FEWEST:
            turn = sum(runner.calls * runner.least for runner in runners)
            end = time.perf_counter() - start + turn
            is_steady = all(runner.is_steady for runner in runners)
            if end > PATIENCE or (is_steady and (end > BUDGET or count >= MOST)):
                return is_steady
        for runner in runners:
            runner.repeat()
    return all(runner.is_steady for runner in runners)


@contextmanager
def _undisturbed(accelerators: Sequence[torch.device]) -> Iterator[None]:
    kind = accelerators[0].type if accelerators else "cuda"
    with (
        torch.inference_mode(False),
        sg.capture.real_dispatch(),
        torch.random.fork_rng(accelerators, device_type=kind),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def _made_up(proxy: sg.TensorProxy, generator: torch.Generator) -> torch.Tensor:
    if proxy.is_conj or proxy.is_neg:
        raise ValueError("no tensor is made up that is conjugated or negated lazily")
    return made_up(proxy.shape, proxy.stride, proxy.dtype, generator)


def made_up(
    shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    """Return a tensor with a layout. The source of this function is copied into the files of `reproducing`."""
    reach = max(0, 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)))
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.rand(reach, generator=generator, dtype=torch.float32, device=generator.device)
        values = values.mul_(0.8).add_(0.1).to(dtype)
    else:
        values = torch.zeros(reach, dtype=dtype, device=generator.device)
    return values.as_strided(shape, stride)


def _synchronize(accelerators: Sequence[torch.device]) -> None:
    for device in accelerators:
        torch.accelerator.synchronize(device)
