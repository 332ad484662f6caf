"""Counters: returned, branched on, used in arithmetic; of attributes, globals, cells and dicts."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, points, put, repeated, step

CALLS = 0


class Counted(nn.Module):
    """Counts its calls."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.calls = 0
        put(self, **values)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.lin(x)  # type: ignore[no-any-return]


def _counted(forward: Callable[..., Any], **values: Any) -> Scenario:
    kind = type("Kind", (Counted,), {"forward": forward, "__module__": __name__})
    module = kind(**values)
    return repeated(module, lambda: module.calls, times=8)


@case(entries=8)
def only_counted() -> Scenario:
    module = Counted()
    return repeated(module, lambda: module.calls, times=8)


@case(entries=8)
def read_as_a_factor() -> Scenario:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        return self.lin(x) * self.calls  # type: ignore[no-any-return]

    return _counted(forward)


@case(entries=8)
def branched_on() -> Scenario:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        return self.lin(x) if self.calls > 2 else x * 2

    return _counted(forward)


@case(entries=8)
def every_second_call() -> Scenario:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        return self.lin(x) if self.calls % 2 else x * 2

    return _counted(forward)


@case(entries=8)
def warmup_by_a_ratio() -> Scenario:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        return self.lin(x) * min(1.0, self.calls / 3)  # type: ignore[no-any-return]

    return _counted(forward)


@case(entries=8)
def returned_beside_a_tensor() -> Scenario:
    def forward(self: Any, x: Tensor) -> Any:
        self.calls += 1
        return self.lin(x), self.calls

    return _counted(forward)


@case(entries=8)
def in_a_dict() -> Scenario:
    stats = {"calls": 0, "rows": 0}

    def forward(x: Tensor) -> Tensor:
        stats["calls"] += 1
        stats["rows"] += x.shape[0]
        return x * 2

    return repeated(forward, lambda: stats, times=8)


@case(entries=8)
def in_a_cell() -> Scenario:
    calls = 0

    def forward(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x + calls

    return repeated(forward, lambda: calls, times=8)


@case(entries=8)
def in_a_global() -> Scenario:
    globals()["CALLS"] = 0

    def forward(x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        return x + CALLS

    return repeated(forward, lambda: CALLS, times=8)


@case()
def reset_between_calls() -> Scenario:
    module = Counted()

    def drive(call: Call) -> Steps:
        for seed in range(8):
            yield step(call, points(seed=seed), of=module)
            yield module.calls
            if module.calls == 4:
                put(module, calls=0)

    return Scenario(module, drive)


@case(entries=8)
def two_counts_a_call() -> Scenario:
    inner = Counted()
    return repeated(nn.Sequential(inner, nn.Tanh(), inner), lambda: inner.calls, times=8)


@case(entries=6)
def exponential_average() -> Scenario:
    meter = types.SimpleNamespace(average=0.0)

    def forward(x: Tensor) -> Tensor:
        meter.average = 0.5 * meter.average + 0.5 * x.shape[0]
        return x * 2

    return repeated(forward, lambda: meter.average, times=6)


@case()
def tensor_that_counts() -> Scenario:
    steps = torch.zeros((), dtype=torch.long)

    def forward(x: Tensor) -> Tensor:
        steps.add_(1)
        return x / steps

    return repeated(forward, lambda: steps)


@case(falls_back="an iterator's position is in no attribute")
def drawn_from_itertools_count() -> Scenario:
    numbers = itertools.count()
    return repeated(lambda x: x + next(numbers), lambda: None)
