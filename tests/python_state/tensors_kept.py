"""Tensors kept between calls: hidden states, masks by length, moving targets, histories, memos of functions."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, points, put, repeated, step


class Layer(nn.Module):
    """A linear layer that keeps things."""

    kept: Any

    def __init__(self, kept: Any = None) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.kept = kept


@case()
def hidden_state_of_a_recurrent_layer() -> Scenario:
    class Recurrent(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = (self.lin(x) + self.kept).tanh().detach()
            return self.lin(self.kept)  # type: ignore[no-any-return]

    module = Recurrent(torch.zeros(3, 4))
    return repeated(module, lambda: module.kept)


@case()
def hidden_state_from_none() -> Scenario:
    class Recurrent(Layer):
        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x) if self.kept is None else self.lin(x) + self.kept
            self.kept = y.detach()
            return y  # type: ignore[no-any-return]

    module = Recurrent()
    return repeated(module, lambda: module.kept)


@case()
def backward_through_two_calls() -> Scenario:
    class Recurrent(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = (self.lin(x) + self.kept).tanh()
            return self.kept  # type: ignore[no-any-return]

    module = Recurrent()

    def drive(call: Call) -> Steps:
        for _ in range(2):
            put(module, kept=torch.zeros(3, 4))
            call(points(seed=1))
            out = call(points(seed=2))
            yield out, torch.autograd.grad(out.sum(), list(module.parameters()))

    return Scenario(module, drive)


@case()
def mask_made_when_the_length_grows() -> Scenario:
    class Causal(Layer):
        def forward(self, x: Tensor) -> Tensor:
            size = x.shape[0]
            if self.kept is None or self.kept.shape[0] < size:
                self.kept = torch.ones(size, size).tril()
            return self.kept[:size, :size] @ self.lin(x)  # type: ignore[no-any-return]

    module = Causal()

    def drive(call: Call) -> Steps:
        for rows in (2, 4, 2, 3, 4, 2, 3):
            yield step(call, points(rows), of=module)
            yield module.kept

    return Scenario(module, drive)


@case(entries=4)
def history_of_losses() -> Scenario:
    class Records(Layer):
        def forward(self, x: Tensor) -> Tensor:
            loss = self.lin(x).square().mean()
            self.kept.append(loss.detach())
            return loss  # type: ignore[no-any-return]

    module = Records([])
    return repeated(module, lambda: module.kept)


@case()
def argument_kept() -> Scenario:
    class Remembers(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = x
            return self.lin(x)  # type: ignore[no-any-return]

    module = Remembers()

    def drive(call: Call) -> Steps:
        for seed in range(4):
            x = points(seed=seed)
            yield step(call, x, of=module)
            yield module.kept is x

    return Scenario(module, drive)


@case()
def view_of_an_argument_kept() -> Scenario:
    class Remembers(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = x[0]
            return self.lin(x)  # type: ignore[no-any-return]

    module = Remembers()

    def drive(call: Call) -> Steps:
        for seed in range(4):
            x = points(seed=seed).detach()
            yield step(call, x, of=module)
            x.zero_()
            yield module.kept

    return Scenario(module, drive)


@case()
def kept_and_returned() -> Scenario:
    class Remembers(Layer):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = self.lin(x)
            return self.kept  # type: ignore[no-any-return]

    module = Remembers()

    def drive(call: Call) -> Steps:
        for seed in range(4):
            out = call(points(seed=seed))
            yield out, out is module.kept

    return Scenario(module, drive)


@case(falls_back="the memo of functools is out of sight")
def memo_of_functools() -> Scenario:
    @functools.lru_cache
    def mask(size: int) -> Tensor:
        return torch.ones(size, size).tril()

    def drive(call: Call) -> Steps:
        for rows in (2, 3, 2, 3):
            yield step(call, points(rows))
            yield mask(rows)
            yield mask(rows) + 1

    return Scenario(lambda x: mask(x.shape[0]) @ x, drive)


@case()
def memo_that_hits() -> Scenario:
    @functools.lru_cache
    def scale(size: int) -> float:
        return float(size) ** -0.5  # type: ignore[no-any-return]

    scale(4)
    return repeated(lambda x: x * scale(x.shape[1]), lambda: None)


@case()
def cached_property() -> Scenario:
    class Lazily(Layer):
        @functools.cached_property
        def table(self) -> Tensor:
            return torch.arange(4.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x) + self.table  # type: ignore[no-any-return]

    module = Lazily()
    return repeated(module, lambda: vars(module)["table"])


@case()
def moving_target_network() -> Scenario:
    online, target = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
        return (online(x) - target(x).detach()).square().mean()  # type: ignore[no-any-return]

    return repeated(forward, lambda: list(target.parameters()))


@case()
def memory_bank_in_place() -> Scenario:
    bank = torch.zeros(4, 4)
    place = [0]

    def forward(x: Tensor) -> Tensor:
        return (x @ bank.T).logsumexp(-1)

    def drive(call: Call) -> Steps:
        for seed in range(4):
            x = points(seed=seed)
            yield step(call, x)
            bank[place[0]] = x.detach()[0]
            place[0] += 1

    return Scenario(forward, drive)
