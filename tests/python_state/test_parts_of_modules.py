"""Parameters, buffers and parts of modules that a function reads and does not call are those of now."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import switchgear as sg

Function: TypeAlias = Callable[[Tensor], Any]
X = torch.ones(2, 3)


def _linear(value: float) -> nn.Linear:
    layer = nn.Linear(3, 3)
    for parameter in layer.parameters():
        nn.init.constant_(parameter, value)
    return layer


def _by_default(layer: nn.Linear) -> Function:
    def function(x: Tensor, layer: nn.Linear = layer) -> Tensor:
        return F.linear(x, layer.weight, layer.bias)

    return function


def _in_object(layer: nn.Linear) -> Function:
    owner = SimpleNamespace(layer=layer)
    return lambda x: F.linear(x, owner.layer.weight, owner.layer.bias)


def _in_list(layer: nn.Linear) -> Function:
    layers = [layer]
    return lambda x: F.linear(x, layers[0].weight, layers[0].bias)


def _in_memo(layer: nn.Linear) -> Function:
    memo = functools.lru_cache(lambda: layer)
    memo()
    return lambda x: F.linear(x, memo().weight, memo().bias)


READS: dict[str, Callable[[nn.Linear], Function]] = {
    "closure": lambda layer: lambda x: F.linear(x, layer.weight, layer.bias),
    "default": _by_default,
    "object": _in_object,
    "list": _in_list,
    "memo": _in_memo,
    "forward": lambda layer: lambda x: layer.forward(x),
    "parameters": lambda layer: lambda x: x * sum(part.sum() for part in layer.parameters()),
    "dict": lambda layer: lambda x: x * sum(p.sum() for p in layer._parameters.values() if p is not None),
    "state_dict": lambda layer: lambda x: x * sum(part.sum() for part in layer.state_dict().values()),
}


class _Negative(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return -weight


def _assign(layer: nn.Linear) -> None:
    layer.load_state_dict({name: value * 3 for name, value in layer.state_dict().items()}, assign=True)


def _replace(layer: nn.Linear) -> None:
    layer.weight = nn.Parameter(torch.full((3, 3), 5.0))


def _drop_bias(layer: nn.Linear) -> None:
    layer.bias = None  # type: ignore[assignment]


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "assign": _assign,
    "replace": _replace,
    "no bias": _drop_bias,
    "prune": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    "parametrize": lambda layer: parametrize.register_parametrization(layer, "weight", _Negative()),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read", READS)
def test_replaced_parameters_are_used(read: str, change: str) -> None:
    layer = _linear(1.0)
    function = READS[read](layer)
    jitted = sg.jit(function, executors=["torch"], strict=True)
    assert torch.equal(jitted(X), function(X))
    CHANGES[change](layer)
    assert torch.equal(jitted(X), function(X))


@pytest.mark.parametrize("kind", [nn.Sequential, nn.ModuleList])
def test_a_replaced_part_is_used(kind: Callable[..., Any]) -> None:
    net: Any = kind([_linear(1.0)]) if kind is nn.ModuleList else kind(_linear(1.0))
    jitted = sg.jit(lambda x: x * net[0].weight.sum(), executors=["torch"], strict=True)
    assert torch.equal(jitted(X), X * 9)
    net[0] = _linear(2.0)
    assert torch.equal(jitted(X), X * 18)


def test_a_replaced_buffer_is_used() -> None:
    norm: Any = nn.BatchNorm1d(3)
    jitted = sg.jit(lambda x: x * norm.running_var, executors=["torch"], strict=True)
    jitted(X)
    norm.running_var = torch.full((3,), 9.0)
    assert torch.equal(jitted(X), X * 9)


@pytest.mark.parametrize("key", [0, "a"])
def test_replaced_items_are_used(key: Any) -> None:
    one = nn.Parameter(torch.ones(3))
    held: Any = nn.ParameterList([one]) if key == 0 else nn.ParameterDict({"a": one})
    jitted = sg.jit(lambda x: x * held[key], executors=["torch"], strict=True)
    jitted(X)
    held[key] = nn.Parameter(torch.full((3,), 2.0))
    assert torch.equal(jitted(X), X * 2)


def test_the_new_parameter_gets_the_gradient() -> None:
    layer = _linear(1.0)
    jitted = sg.jit(lambda x: F.linear(x, layer.weight), executors=["torch"], strict=True)
    jitted(X)
    former = layer.weight
    _replace(layer)
    jitted(X).sum().backward()
    assert former.grad is None
    assert layer.weight.grad is not None


def test_parts_that_stay_are_compiled_once() -> None:
    net: Any = nn.Sequential(_linear(1.0), _linear(2.0))
    jitted = sg.jit(lambda x: net(x) + F.linear(x, net[0].weight), executors=["torch"], strict=True)
    for _ in range(3):
        assert torch.equal(jitted(X), net(X) + F.linear(X, net[0].weight))
    assert sg.cache_info(jitted).misses == 1


def test_an_object_with_parameters_of_its_own_is_no_module() -> None:
    class Model:
        _parameters = (2.0,)

        def __init__(self) -> None:
            self._modules = [3.0]

    model = Model()
    jitted = sg.jit(lambda x: x * model._parameters[0] * model._modules[0], executors=["torch"], strict=True)
    assert torch.equal(jitted(X), X * 6)
