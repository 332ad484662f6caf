"""Counters: returned, branched on, used in arithmetic; of attributes, globals, cells and dicts."""

from __future__ import annotations

import collections
import dataclasses
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


def _counted(forward: Callable[..., Any], times: int = 8, **values: Any) -> Scenario:
    kind = type("Kind", (Counted,), {"forward": forward, "__module__": __name__})
    module = kind(**values)
    return repeated(module, lambda: module.calls, times)


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


@case(entries=3)
def counted_for_long() -> Scenario:
    module = Counted()
    return repeated(module, lambda: (module.calls, type(module.calls)), times=20)


@case(entries=3)
def sums_in_a_list() -> Scenario:
    module: Any = Counted(sums=[0, 0], calls=2)

    def forward(x: Tensor) -> Tensor:
        module.calls += 1
        module.sums[0] += module.calls
        module.sums[1] = module.sums[0] * 2
        return x * module.calls + module.sums[1]  # type: ignore[no-any-return]

    return repeated(forward, lambda: (module.calls, module.sums), times=20)


@case(entries=4)
def compared_with_a_limit() -> Scenario:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        return self.lin(x) if self.calls > 9 else x * 2

    return _counted(forward, times=20)


@case(entries=3)
def asked_whether_it_is_an_integer() -> Scenario:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1 if isinstance(self.calls, int) else 100
        return self.lin(x)  # type: ignore[no-any-return]

    return _counted(forward, times=12)


@case(entries=8)
def told_in_a_text() -> Scenario:
    def forward(self: Any, x: Tensor) -> Any:
        self.calls += 1
        return self.lin(x), f"{self.calls} of {self.calls + 1:4d}, {self.calls!r}"

    return _counted(forward)


@case(entries=8)
def asked_for_its_exact_type() -> Scenario:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1 if type(self.calls) is int else 100
        return self.lin(x)  # type: ignore[no-any-return]

    return _counted(forward)


@case(entries=8)
def index_of_a_list_and_a_key() -> Scenario:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen[self.calls] = self.table[self.calls]
        return self.lin(x) * self.seen[self.calls]  # type: ignore[no-any-return]

    return _counted(forward, table=[*range(20)], seen={})


class InSlots:
    """Two counts, no dict."""

    __slots__ = ("rows", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.rows = 5


@case(entries=3)
def in_slots() -> Scenario:
    counts = InSlots()

    def forward(x: Tensor) -> Tensor:
        counts.steps += 1
        counts.rows += x.shape[0]
        return x * counts.steps

    return repeated(forward, lambda: (counts.steps, counts.rows), times=12)


@case(entries=3)
def of_an_object_among_the_arguments() -> Scenario:
    def drive(call: Call) -> Steps:
        counts = types.SimpleNamespace(steps=0, seen={"rows": 2})
        for seed in range(12):
            yield call(counts, points(seed=seed))
            yield counts.steps, counts.seen

    def forward(counts: Any, x: Tensor) -> Tensor:
        counts.steps += 1
        counts.seen["rows"] += x.shape[0]
        return x * counts.steps  # type: ignore[no-any-return]

    return Scenario(forward, drive)


@case(entries=3)
def number_of_the_caller() -> Scenario:
    module: Any = Counted(scale=2)

    def forward(x: Tensor) -> Tensor:
        return x * module.scale  # type: ignore[no-any-return]

    def drive(call: Call) -> Steps:
        for scale in (2, 3, 5, 8, 13, 21):
            module.scale = scale
            yield step(call, points())

    return Scenario(forward, drive)


@case(entries=5)
def number_that_goes_below_two() -> Scenario:
    module: Any = Counted(scale=2)

    def forward(x: Tensor) -> Tensor:
        return x * module.scale  # type: ignore[no-any-return]

    def drive(call: Call) -> Steps:
        for scale in (4, 3, 0, 1, 7, -2, 5, 0):
            module.scale = scale
            yield step(call, points())

    return Scenario(forward, drive, settled=True)


@case(entries=6)
def length_of_a_slice() -> Scenario:
    module: Any = Counted(width=2)

    def forward(x: Tensor) -> Tensor:
        return x[:, : module.width].cumsum(1)

    def drive(call: Call) -> Steps:
        for width in (2, 3, 4, 3, 2):
            module.width = width
            yield step(call, points())

    return Scenario(forward, drive)


@case(entries=4)
def window_that_fills() -> Scenario:
    class Window:
        def __init__(self) -> None:
            self.kept: Any = None
            self.seen = 0

    def forward(window: Any, x: Tensor) -> Tensor:
        window.seen += x.shape[0]
        whole = x if window.kept is None else torch.cat([window.kept, x])
        window.kept = whole[-5:] if window.seen > 5 else whole
        return whole.sum(0)

    def drive(call: Call) -> Steps:
        window = Window()
        for seed in range(10):
            yield call(window, points(1, seed).detach())
            yield window.seen, window.kept

    return Scenario(forward, drive)


@case(entries=3)
def both_steps_and_sizes() -> Scenario:
    module = Counted(calls=2)

    def forward(x: Tensor) -> Tensor:
        module.calls += 1
        return x * module.calls + x.shape[0]

    def drive(call: Call) -> Steps:
        for rows in (3, 4, 5, 6, 3, 7):
            yield step(call, points(rows))
            yield module.calls

    return Scenario(forward, drive)


@case(entries=3)
def of_two_modules_with_one_name() -> Scenario:
    pair = nn.Sequential(Counted(calls=2), Counted(calls=5))
    return repeated(pair, lambda: [part.calls for part in pair], times=12)


@case(entries=3)
def copied_to_another_attribute() -> Scenario:
    module: Any = Counted(calls=2, last=0)

    def forward(x: Tensor) -> Tensor:
        module.last = module.calls
        module.calls = module.calls * 2 - module.last + 1
        return x + module.last  # type: ignore[no-any-return]

    return repeated(forward, lambda: (module.calls, module.last), times=12)


@case(entries=12)
def steps_of_a_schedule() -> Scenario:
    module: Any = Counted(calls=2)

    def forward(x: Tensor) -> Tensor:
        module.calls += 1
        rate = 0.1 if module.calls < 6 else 0.1 / (1 + (module.calls - 6) // 3)
        return x * rate

    return repeated(forward, lambda: module.calls, times=12)


@case(entries=3)
def assigned_a_size() -> Scenario:
    module: Any = Counted(rows=0)

    def forward(x: Tensor) -> Tensor:
        module.rows = x.shape[0]
        return x * 2

    def drive(call: Call) -> Steps:
        for rows in (3, 4, 5, 6, 3, 7):
            yield step(call, points(rows))
            yield module.rows, type(module.rows)

    return Scenario(forward, drive)


@case(entries=10)
def kept_as_it_grows() -> Scenario:
    log: list[int] = []
    module = Counted(calls=2)

    def forward(x: Tensor) -> Tensor:
        module.calls += 1
        log.append(module.calls)
        return x + module.calls

    return repeated(forward, lambda: log, times=10)


@dataclasses.dataclass
class Progress:
    """A step, and what it counts to."""

    step: int = 2
    total: int = 30


@case(entries=3)
def of_a_dataclass() -> Scenario:
    progress = Progress()

    def forward(x: Tensor) -> Tensor:
        progress.step += 1
        return x * progress.step / progress.total

    return repeated(forward, lambda: progress.step, times=12)


@case(entries=3)
def in_a_default_dict() -> Scenario:
    counts: collections.defaultdict[str, int] = collections.defaultdict(int)

    def forward(x: Tensor) -> Tensor:
        for name in ("calls", "rows"):
            counts[name] += 1 if name == "calls" else x.shape[0]
        return x * counts["calls"]

    return repeated(forward, lambda: (counts, type(counts["calls"])), times=10)


@case(entries=4)
def added_in_another_module() -> Scenario:
    counted = nn.Sequential(Counted(calls=2), nn.ReLU())

    def forward(x: Tensor) -> Tensor:
        return counted(x) + counted[0].calls  # type: ignore[no-any-return]

    return repeated(forward, lambda: counted[0].calls, times=10)


@case(entries=4)
def turned_to_a_number_of_the_trace() -> Scenario:
    module = Counted(calls=2)

    def forward(x: Tensor) -> Tensor:
        module.calls += 1
        return x + torch.full((3, 4), module.calls) + torch.tensor(2.0) * module.calls

    return repeated(forward, lambda: module.calls, times=10)
