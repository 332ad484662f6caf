"""Attributes that are written: last values, flags, new and deleted names, class attributes, globals and cells."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, points, put, repeated, step

LAST: Any = None


class Layer(nn.Module):
    """A linear layer whose subclasses write to it."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        put(self, **values)


@case()
def shape_of_the_last_input() -> Scenario:
    class Notes(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.last_shape = tuple(x.shape)
            return self.lin(x)  # type: ignore[no-any-return]

    module = Notes()

    def drive(call: Call) -> Steps:
        for rows in (2, 3, 2, 3):
            yield step(call, points(rows), of=module)
            yield module.last_shape

    return Scenario(module, drive)


@case()
def constant_that_is_there_already() -> Scenario:
    class Sets(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.scale = 0.25
            return self.lin(x)  # type: ignore[no-any-return]

    module = Sets(scale=0.25)

    def drive(call: Call) -> Steps:
        for scale in (0.25, 2.0, 0.25, 3.0):
            module.scale = scale
            yield step(call, points(2), of=module)
            yield module.scale

    return Scenario(module, drive)


@case()
def flag_of_the_first_call() -> Scenario:
    class Initialises(Layer):
        def forward(self, x: Tensor) -> Tensor:
            if not self.ready:  # type: ignore[has-type]
                self.ready = True
                return self.lin(x) * 0  # type: ignore[no-any-return]
            return self.lin(x)  # type: ignore[no-any-return]

    module = Initialises(ready=False)
    return repeated(module, lambda: module.ready)


@case()
def flag_reset_between_calls() -> Scenario:
    class Visits(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.visited = True
            return self.lin(x)  # type: ignore[no-any-return]

    module = Visits(visited=False)

    def drive(call: Call) -> Steps:
        for _ in range(4):
            put(module, visited=False)
            yield step(call, points(), of=module)
            yield module.visited

    return Scenario(module, drive)


@case()
def tensor_for_the_log() -> Scenario:
    class Logs(Layer):
        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            self.norm = y.detach().norm()
            return y  # type: ignore[no-any-return]

    module = Logs()
    return repeated(module, lambda: module.norm)


@case()
def tensor_with_history() -> Scenario:
    class Keeps(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.hidden = self.lin(x)
            return self.hidden.relu()  # type: ignore[no-any-return]

    module = Keeps()

    def drive(call: Call) -> Steps:
        for seed in range(4):
            out = call(points(seed=seed))
            loss = out.sum() + module.hidden.square().sum()
            yield torch.autograd.grad(loss, list(module.parameters()))
            yield module.hidden

    return Scenario(module, drive)


@case()
def attribute_made_and_deleted_inside() -> Scenario:
    class Borrows(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.current = x * 2
            try:
                return self.inner()
            finally:
                del self.current

        def inner(self) -> Tensor:
            return self.lin(self.current)  # type: ignore[no-any-return]

    module = Borrows()
    return repeated(module, lambda: "current" in vars(module))


@case()
def attribute_deleted_inside() -> Scenario:
    class Clears(Layer):
        def forward(self, x: Tensor) -> Tensor:
            if "cache" in self.__dict__:
                del self.cache
            return self.lin(x)  # type: ignore[no-any-return]

    module = Clears(cache=1)

    def drive(call: Call) -> Steps:
        for seed in range(4):
            yield step(call, points(seed=seed), of=module)
            yield hasattr(module, "cache")
            put(module, cache=seed)

    return Scenario(module, drive)


@case()
def value_set_and_put_back() -> Scenario:
    class Temporarily(Layer):
        def forward(self, x: Tensor) -> Tensor:
            before, self.scale = self.scale, 3.0  # type: ignore[has-type]
            y = self.lin(x) * self.scale
            self.scale = before
            return y  # type: ignore[no-any-return]

    module = Temporarily(scale=1.0)
    return repeated(module, lambda: module.scale)


@case()
def swap_of_two_tensors() -> Scenario:
    holder = types.SimpleNamespace(current=torch.zeros(4), target=torch.ones(4))

    def swapped(x: Tensor) -> Tensor:
        holder.current, holder.target = holder.target, holder.current
        return x * holder.current  # type: ignore[no-any-return]

    return repeated(swapped, lambda: (holder.current, holder.target))


@dataclass
class Statistics:
    last: Any = None
    rows: int = 0


@case()
def dataclass_of_statistics() -> Scenario:
    statistics = Statistics()

    def forward(x: Tensor) -> Tensor:
        statistics.last = x.detach().mean()
        statistics.rows = x.shape[0]
        return x * 2

    return repeated(forward, lambda: statistics)


@case()
def class_attribute_written() -> Scenario:
    class Shared(Layer):
        last: Any = None

        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            type(self).last = y.detach().sum()
            return y  # type: ignore[no-any-return]

    module = Shared()
    return repeated(module, lambda: Shared.last)


@case()
def global_written() -> Scenario:
    def forward(x: Tensor) -> Tensor:
        global LAST
        LAST = x.detach() + 1
        return x * 2

    return repeated(forward, lambda: LAST)


@case()
def cell_written() -> Scenario:
    last: Any = None

    def forward(x: Tensor) -> Tensor:
        nonlocal last
        last = x.detach() + 1
        return x * 2

    return repeated(forward, lambda: last)


@case()
def attribute_of_a_slot() -> Scenario:
    class Slotted:
        __slots__ = ("last",)
        last: Any

    holder = Slotted()

    def forward(x: Tensor) -> Tensor:
        holder.last = x.detach().sum()
        return x * 2

    return repeated(forward, lambda: holder.last)


@case(entries=4)
def property_with_a_setter() -> Scenario:
    class Checked(Layer):
        @property
        def temperature(self) -> Any:
            return self._temperature

        @temperature.setter
        def temperature(self, value: Any) -> None:
            self._temperature = max(0.5, value)

        def forward(self, x: Tensor) -> Tensor:
            self.temperature = self.temperature * 0.75
            return self.lin(x) / self.temperature  # type: ignore[no-any-return]

    module = Checked(_temperature=1.0)
    return repeated(module, lambda: module._temperature)


@case()
def buffer_rebound() -> Scenario:
    class Averages(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1  # type: ignore[has-type]
            return self.lin(x) - self.mean  # type: ignore[no-any-return]

    module = Averages()
    return repeated(module, lambda: dict(module.named_buffers()))


@case()
def buffer_registered_inside() -> Scenario:
    class Lazily(Layer):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "positions"):
                self.register_buffer("positions", torch.arange(4.0))
            return self.lin(x) + self.positions  # type: ignore[no-any-return]

    module = Lazily()
    return repeated(module, lambda: dict(module.named_buffers()))


@case()
def training_flag_switched_inside() -> Scenario:
    class Freezes(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.drop.eval()  # type: ignore[union-attr]
            return self.drop(self.lin(x))  # type: ignore[no-any-return, operator]

    module = Freezes(drop=nn.Dropout(0.5))
    return repeated(module, lambda: module.drop.training)  # type: ignore[union-attr]


@case(entries=4)
def object_made_inside_and_kept() -> Scenario:
    holder = types.SimpleNamespace(output=None)

    def forward(x: Tensor) -> Tensor:
        holder.output = Statistics(last=x.detach() * 2, rows=x.shape[0])
        return x + 1

    return repeated(forward, lambda: holder.output)


@case()
def written_before_an_error() -> Scenario:
    holder = types.SimpleNamespace(calls=0, strict=False)

    def forward(x: Tensor) -> Tensor:
        holder.calls = x.shape[0]
        if holder.strict:
            raise ValueError("too strict")
        return x * 2

    def drive(call: Call) -> Steps:
        for strict in (False, False, True, False):
            put(holder, calls=0, strict=strict)
            try:
                yield step(call, points())
            except ValueError as error:
                yield str(error)
            yield holder.calls

    return Scenario(forward, drive)
