"""Results that are objects from before the call, or are shared, as eager gives them."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, points, put, step


def _calls(function: Any, facts: Any, args: Any = lambda: (points(),)) -> Scenario:
    """Results, and what is so of them."""

    def drive(call: Call) -> Steps:
        for _ in range(4):
            given = args()
            result = call(*given)
            yield result
            yield facts(result, *given)

    return Scenario(function, drive)


@case()
def closed_over_object() -> Scenario:
    state = types.SimpleNamespace(step=1)
    return _calls(lambda x: (x * 2, state), lambda result, x: result[1] is state)


@case(entries=4)
def closed_over_list() -> Scenario:
    names = ["a"]
    return _calls(lambda x: (x * 2, names), lambda result, x: (result[1] is names, result[1].append("b")))


@case()
def argument_list() -> Scenario:
    return _calls(
        lambda batch: (batch[0] * 2, batch), lambda result, batch: result[1] is batch, lambda: ([points(), 3],)
    )


@case()
def argument_tensor() -> Scenario:
    return _calls(lambda x: (x, x * 2), lambda result, x: result[0] is x)


@case()
def parameter() -> Scenario:
    layer = nn.Linear(4, 4)
    return _calls(lambda x: (layer(x), layer.weight), lambda result, x: result[1] is layer.weight)


@case()
def one_tensor_twice() -> Scenario:
    def forward(x: Tensor) -> Any:
        y = x * 2
        return y, {"again": y}

    return _calls(forward, lambda result, x: result[0] is result[1]["again"])


@case()
def one_list_twice() -> Scenario:
    def forward(x: Tensor) -> Any:
        parts = [x * 2]
        return parts, parts

    return _calls(forward, lambda result, x: result[0] is result[1])


@dataclass
class Output:
    logits: Any
    cache: Any = None


@case()
def cache_in_an_output() -> Scenario:
    cache = types.SimpleNamespace(length=0)

    def drive(call: Call) -> Steps:
        for _ in range(4):
            out = call(points(), cache)
            yield out.cache is cache, out
            cache.length += 1

    return Scenario(lambda x, kept: Output(x * 2, kept), drive)


@case()
def attribute_that_is_no_field() -> Scenario:
    def forward(x: Tensor) -> Output:
        out = Output(x * 2)
        out.hidden = x * 3  # type: ignore[attr-defined]
        return out

    return _calls(forward, lambda result, x: result.hidden)


@case()
def module_itself() -> Scenario:
    class Fluent(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return x * 2, self.config

    module = Fluent()
    put(module, config={"a": 1})

    def drive(call: Call) -> Steps:
        for number in range(4):
            result = step(call, points())
            yield result, result[0][1] is module.config
            module.config["a"] = number // 2  # type: ignore[index, operator]

    return Scenario(module, drive)


@case()
def fresh_list_in_every_call() -> Scenario:
    def drive(call: Call) -> Steps:
        first, second = call(points()), call(points())
        first.append(1)
        yield first is second, second
        yield call(points())

    return Scenario(lambda x: [x * 2], drive)


@case()
def view_of_state() -> Scenario:
    table = torch.zeros(3, 4)

    def drive(call: Call) -> Steps:
        for number in range(3):
            _y, row = call(points())
            row += number
            yield table

    return Scenario(lambda x: (x + table, table[1]), drive)


@case()
def function_over_a_tensor() -> Scenario:
    def forward(x: Tensor) -> Any:
        y = x * 2
        return lambda z: y + z

    def drive(call: Call) -> Steps:
        for seed in range(3):
            yield call(points(seed=seed))(torch.ones(4))

    return Scenario(forward, drive)
