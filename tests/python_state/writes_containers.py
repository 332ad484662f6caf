"""Lists, dicts, sets and deques that are written: in arguments, attributes, closures and defaults."""

from __future__ import annotations

import types
from collections import Counter, defaultdict, deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, points, repeated, step


@case(entries=4)
def tensor_appended_to_a_closed_over_list() -> Scenario:
    log: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        log.append(x.detach() * 2)
        return x + 1

    return repeated(forward, lambda: log)


@case()
def tensor_with_history_in_a_list() -> Scenario:
    losses: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        losses.append(x.square().mean())
        return x * 2

    def drive(call: Call) -> Steps:
        for seed in range(4):
            x = points(seed=seed)
            losses.clear()
            out = call(x)
            yield torch.autograd.grad(out.mean() + losses[0], x)

    return Scenario(forward, drive)


@case(entries=4)
def number_appended() -> Scenario:
    lengths: list[int] = []

    def forward(x: Tensor) -> Tensor:
        lengths.append(x.shape[0])
        return x + 1

    return repeated(forward, lambda: lengths)


@case(entries=6)
def length_that_decides_after_appends() -> Scenario:
    log: list[int] = []

    def forward(x: Tensor) -> Tensor:
        log.append(1)
        return x * 2 if len(log) > 3 else x

    return repeated(forward, lambda: log, 6)


@case()
def dict_entry_of_a_closure() -> Scenario:
    features: dict[str, Tensor] = {}

    def forward(x: Tensor) -> Tensor:
        features["hidden"] = x.detach() * 3
        return x + 1

    def drive(call: Call) -> Steps:
        for seed in range(4):
            yield step(call, points(seed=seed))
            yield features
            features.clear()

    return Scenario(forward, drive)


@case()
def list_passed_to_be_filled() -> Scenario:
    def forward(x: Tensor, collected: list[Tensor]) -> Tensor:
        y = x * 2
        collected.append(y)
        return y + 1

    def drive(call: Call) -> Steps:
        for seed in range(4):
            collected: list[Tensor] = []
            yield step(call, points(seed=seed), collected)
            yield collected

    return Scenario(forward, drive)


@case()
def dict_passed_to_be_updated() -> Scenario:
    def forward(batch: dict[str, Any]) -> Tensor:
        batch["logits"] = batch["x"] * 2
        batch.pop("extra", None)
        return batch["logits"].sum()  # type: ignore[no-any-return]

    def drive(call: Call) -> Steps:
        for seed in range(4):
            batch = {"x": points(seed=seed), "extra": torch.ones(2)}
            yield call(batch)
            yield batch

    return Scenario(forward, drive)


@case()
def labels_popped_from_a_batch() -> Scenario:
    layer = nn.Linear(4, 4)

    def forward(batch: dict[str, Tensor]) -> Tensor:
        labels = batch.pop("labels")
        return (layer(batch["inputs"]) - labels).square().mean()  # type: ignore[no-any-return]

    def drive(call: Call) -> Steps:
        for seed in range(4):
            batch = {"inputs": points(seed=seed), "labels": torch.ones(3, 4)}
            loss = call(batch)
            yield loss, torch.autograd.grad(loss, list(layer.parameters())), list(batch)
            batch["labels"] = torch.zeros(3, 4)

    return Scenario(forward, drive, settled=False)


@case()
def deque_as_a_window() -> Scenario:
    window: deque[Tensor] = deque([torch.zeros(4)] * 2, maxlen=2)

    def forward(x: Tensor) -> Tensor:
        window.append(x.detach().mean(0))
        return x - (window[0] + window[1]) / 2

    return repeated(forward, lambda: window)


@case()
def set_of_shapes() -> Scenario:
    shapes: set[tuple[int, ...]] = set()

    def forward(x: Tensor) -> Tensor:
        shapes.add(tuple(x.shape))
        return x * 2

    def drive(call: Call) -> Steps:
        for rows in (2, 3, 2, 3):
            yield step(call, points(rows))
            yield shapes
        shapes.clear()
        yield step(call, points(2)), shapes

    return Scenario(forward, drive)


@case(entries=4)
def mutable_default() -> Scenario:
    def forward(x: Tensor, seen: list[Tensor] = []) -> Tensor:  # noqa: B006
        seen.append(x.detach().sum())
        return x * 2

    return repeated(forward, lambda: forward.__defaults__)


@case()
def list_cleared_inside() -> Scenario:
    queue = [torch.ones(4)]

    def forward(x: Tensor) -> Tensor:
        y = x + sum(queue)
        queue.clear()
        return y

    def drive(call: Call) -> Steps:
        for seed in range(4):
            yield step(call, points(seed=seed)), queue
            queue.append(torch.full((4,), float(seed)))

    return Scenario(forward, drive)


@case()
def list_sorted_and_sliced() -> Scenario:
    order = [2, 0, 1]

    def forward(x: Tensor) -> Tensor:
        order.append(order.pop(0))
        return x[:, order]

    return repeated(forward, lambda: order, times=7)


@case(entries=4)
def default_dict_by_layer() -> Scenario:
    statistics: defaultdict[str, list[Tensor]] = defaultdict(list)

    def forward(x: Tensor) -> Tensor:
        for name in ("a", "b"):
            x = x * 2
            statistics[name].append(x.detach().mean())
        return x

    return repeated(forward, lambda: statistics)


@case(entries=6)
def counter_of_shapes() -> Scenario:
    seen: Counter[int] = Counter()

    def forward(x: Tensor) -> Tensor:
        seen[x.shape[0]] += 1
        return x * 2

    return repeated(forward, lambda: seen, times=6)


@case()
def memo_by_length() -> Scenario:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.memo: dict[int, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            rows = x.shape[0]
            if rows not in self.memo:
                self.memo[rows] = torch.arange(float(rows))[:, None]
            return self.lin(x) + self.memo[rows]  # type: ignore[no-any-return]

    module = Positions()

    def drive(call: Call) -> Steps:
        for rows in (2, 3, 2, 3, 2, 3):
            yield step(call, points(rows), of=module)
            yield module.memo

    return Scenario(module, drive)


@case()
def nested_containers() -> Scenario:
    state = types.SimpleNamespace(log={"train": {"loss": [0.0]}})

    def forward(x: Tensor) -> Tensor:
        state.log["train"]["loss"][0] = x.detach().mean()
        return x * 2

    return repeated(forward, lambda: state.log)


@case(entries=4)
def class_in_a_registry_that_counts() -> Scenario:
    class Scaling:
        calls = 0

    registry = {"scaling": Scaling}

    def forward(x: Tensor) -> Tensor:
        registry["scaling"].calls += 1
        return x * registry["scaling"].calls

    return repeated(forward, lambda: Scaling.calls)


class History(nn.Module):
    """Containers that a user empties by putting new ones in their places."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.states: list[Tensor] = []
        self.recent: deque[Tensor] = deque(maxlen=2)
        self.table: dict[str, list[int]] = {"lengths": []}

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        self.states.append(x.detach() * 2)
        self.recent.append(x.detach())
        self.table["lengths"].append(len(self.states))
        return x * len(self.states), self.states


@case(entries=3)
def containers_put_in_the_place_of_those_written_to() -> Scenario:
    module = History()

    def drive(call: Call) -> Steps:
        for number in range(12):
            if number % 3 == 0:
                module.reset()
            result, states = call(points(seed=number))
            yield result, states is module.states, module.states, module.recent, module.table

    return Scenario(module, drive)


@case()
def list_written_to_and_replaced() -> Scenario:
    holder = types.SimpleNamespace(log=[])

    def forward(x: Tensor) -> tuple[Tensor, list[Any]]:
        log = holder.log
        log.append(x.detach())
        holder.log = [] if len(log) > 1 else log
        return x * 2, log

    return repeated(forward, lambda: holder.log, 6)


@case(entries=4)
def list_that_lies_in_two_places() -> Scenario:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one: list[Tensor] = []
            self.two = self.one

        def forward(self, x: Tensor) -> Tensor:
            self.one.append(x.detach())
            return x * len(self.two)

    module = Pair()

    def drive(call: Call) -> Steps:
        for number in range(6):
            if number == 2:
                module.one = module.two = []
            if number == 4:
                module.one = [*module.two]
            yield step(call, points()), module.one, module.two

    return Scenario(module, drive)


@case(falls_back="an array of NumPy's")
def array_written_to() -> Scenario:
    table = {"counts": np.zeros(2)}

    def forward(x: Tensor) -> Tensor:
        table["counts"][0] += 1
        return x * float(table["counts"][0])

    return repeated(forward, lambda: table)


@case()
def key_taken_from_the_middle_of_an_argument() -> Scenario:
    def forward(x: Tensor, batch: dict[str, Any]) -> Tensor:
        return x * batch.pop("scale")  # type: ignore[no-any-return]

    def drive(call: Call) -> Steps:
        for scale in (1.0, 1.0, 2.0):
            batch = {"names": "a", "scale": scale, "mask": None}
            yield step(call, points(), batch), [*batch]

    return Scenario(forward, drive)


@case(entries=2)
def key_that_a_dict_has_a_default_for() -> Scenario:
    def forward(batch: dict[str, Any]) -> Any:
        batch["y"] = batch["x"] * 2
        return batch["y"] * batch["mask"] if "mask" in batch else batch["y"]

    def drive(call: Call) -> Steps:
        for number in range(4):
            batch = defaultdict[str, Any](int, {"x": points()} | ({"mask": torch.ones(4)} if number < 2 else {}))
            yield call(batch), [*batch]

    return Scenario(forward, drive)
