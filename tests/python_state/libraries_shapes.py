"""Shapes of real libraries in small: adapters, config flags, layer drop, auxiliary losses."""

from __future__ import annotations

import random
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.python_state.scenario import Call, Scenario, Steps, case, changed, points, put, repeated, step


class LoraLinear(nn.Module):
    """As in peft: a base layer, adapters by name, and switches in plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.adapters = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in "ab"}).requires_grad_(False)
        self.scaling = {"a": 1.0, "b": 0.5}
        self.active = ["a"]
        self.merged: list[str] = []
        self.disabled = False

    def forward(self, x: Tensor) -> Tensor:
        """The base and the active adapters, unless these are merged or disabled."""
        y = self.base(x)
        if self.disabled or self.merged:
            return y  # type: ignore[no-any-return]
        for name in self.active:
            y = y + self.adapters[name](x) * self.scaling[name]
        return y  # type: ignore[no-any-return]

    def merge(self) -> None:
        """Add the active adapters to the base's weight."""
        for name in self.active:
            self.base.weight.data += self.adapters[name].weight * self.scaling[name]  # type: ignore[operator]
            self.merged.append(name)

    @contextmanager
    def without_adapters(self) -> Iterator[None]:
        """Disable them inside."""
        self.disabled = True
        try:
            yield
        finally:
            self.disabled = False


@case()
def adapter_scale() -> Scenario:
    layer = LoraLinear()
    return changed(layer, lambda: layer.scaling.update(a=7.0))


@case()
def adapter_switched() -> Scenario:
    layer = LoraLinear()
    return changed(layer, lambda: put(layer, active=["b"]), lambda: put(layer, active=["a", "b"]))


@case()
def adapters_disabled() -> Scenario:
    layer = LoraLinear()

    def drive(call: Call) -> Steps:
        for _ in range(2):
            yield step(call, points())
            with layer.without_adapters():
                yield step(call, points())

    return Scenario(nn.Sequential(layer, nn.Tanh()), drive)


@case()
def adapter_merged() -> Scenario:
    layer = LoraLinear()
    return changed(layer, layer.merge)


@case()
def adapter_added() -> Scenario:
    layer = LoraLinear()

    def add() -> None:
        layer.adapters["c"] = nn.Linear(4, 4, bias=False)
        layer.scaling["c"] = 2.0
        layer.active.append("c")

    return changed(layer, add)


@dataclass
class Config:
    """As in transformers: flags that forward reads."""

    output_hidden_states: bool = False
    return_dict: bool = True
    attention: str = "eager"
    rope: dict[str, Any] = field(default_factory=lambda: {"type": "default", "factor": 2.0})


class Model(nn.Module):
    """Two layers that look into one config."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.gradient_checkpointing = False

    def forward(self, x: Tensor) -> Any:
        """The last state, and all states where the config asks for these."""
        states = [x]
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.gradient_checkpointing else layer(x)
            x = x @ x.T @ x if self.config.attention == "eager" else x.tanh()
            states.append(x)
        hidden = tuple(states) if self.config.output_hidden_states else None
        return {"last": x, "hidden": hidden} if self.config.return_dict else (x, hidden)


@case()
def config_hidden_states() -> Scenario:
    model = Model()
    return changed(model, lambda: put(model.config, output_hidden_states=True))


@case()
def config_return_dict() -> Scenario:
    model = Model()
    return changed(model, lambda: put(model.config, return_dict=False), lambda: put(model.config, return_dict=True))


@case()
def config_attention() -> Scenario:
    model = Model()
    put(model.config, return_dict=False)
    return changed(model, lambda: put(model.config, attention="linear"))


@case()
def gradient_checkpointing_enabled() -> Scenario:
    model = Model()
    put(model.config, return_dict=False)

    def drive(call: Call) -> Steps:
        for enabled in (False, False, True, True):
            put(model, gradient_checkpointing=enabled)
            yield step(call, points(), of=model)

    return Scenario(model, drive)


@case()
def attention_by_a_table() -> Scenario:
    functions = {"eager": lambda q: (q @ q.T).softmax(-1) @ q, "linear": lambda q: q @ (q.T @ q)}
    config = types.SimpleNamespace(implementation="eager")
    return changed(
        lambda x: functions[config.implementation](x),
        lambda: put(config, implementation="linear"),
        lambda: functions.update(linear=lambda q: q * 2),
    )


@case(falls_back="Python's random stream decides")
def layer_drop_by_python() -> Scenario:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                if not self.training or random.random() >= 0.5:
                    x = layer(x)
            return x

    return repeated(Drops(), lambda: None)


@case(falls_back="a draw is read by Python")
def layer_drop_by_torch() -> Scenario:
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(x: Tensor) -> Tensor:
        for layer in layers:
            if torch.rand([]) >= 0.5:
                x = layer(x)
        return x

    return repeated(forward, lambda: None)


@case()
def auxiliary_losses_of_experts() -> Scenario:
    class Router(nn.Module):
        aux: Any = None

        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            probabilities = self.gate(x).softmax(-1)
            self.aux = probabilities.mean(0).square().sum()
            return x * probabilities  # type: ignore[no-any-return]

    model = nn.Sequential(Router(), Router())

    def drive(call: Call) -> Steps:
        for seed in range(4):
            out = call(points(seed=seed))
            loss = out.mean() + sum(router.aux for router in model)  # type: ignore[misc]
            yield loss, torch.autograd.grad(loss, list(model.parameters()))

    return Scenario(model, drive)


@case()
def losses_gathered_by_the_root() -> Scenario:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.losses: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            self.losses.clear()
            for _ in range(2):
                x = self.lin(x)
                self.losses.append(x.square().mean())
            return x.mean() + torch.stack(self.losses).sum()

    module = Net()
    return repeated(module, lambda: module.losses)


@case()
def metrics_logged_as_by_lightning() -> Scenario:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.logged: dict[str, Any] = {}
            self.trainer = types.SimpleNamespace(global_step=0)

        def log(self, name: str, value: Any) -> None:
            self.logged[name] = value

        def forward(self, x: Tensor) -> Tensor:
            loss = self.lin(x).square().mean()
            self.log("loss", loss.detach())
            return loss  # type: ignore[no-any-return]

    module = Task()

    def drive(call: Call) -> Steps:
        for seed in range(4):
            yield step(call, points(seed=seed), of=module)
            yield module.logged
            module.trainer.global_step += 1

    return Scenario(module, drive)


@case()
def learning_rate_of_an_optimiser() -> Scenario:
    layer = nn.Linear(4, 4)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)

    def drive(call: Call) -> Steps:
        for rate in (0.1, 0.1, 0.01, 0.01):
            optimiser.param_groups[0]["lr"] = rate
            loss = call(points())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            yield loss, list(layer.parameters())

    return Scenario(lambda x: layer(x).square().mean() * optimiser.param_groups[0]["lr"], drive)


@case()
def stochastic_depth_rate() -> Scenario:
    class DropPath(nn.Module):
        rate = 0.5

        def forward(self, x: Tensor) -> Tensor:
            if not self.rate or not self.training:
                return x
            keep = 1 - self.rate
            return x * x.new_empty(x.shape[0], 1).bernoulli_(keep) / keep

    drop = DropPath()
    return changed(nn.Sequential(nn.Linear(4, 4), drop), lambda: put(drop, rate=0.25), lambda: put(drop, rate=0.0))


@case()
def classifier_reset() -> Scenario:
    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head: nn.Module = nn.Linear(4, 2)
            self.pool = "mean"

        def forward(self, x: Tensor) -> Tensor:
            x = x.mean(0) if self.pool == "mean" else x[0]
            return self.head(x)  # type: ignore[no-any-return]

    model = Vit()
    return changed(
        model, lambda: put(model, head=nn.Identity(), pool="token"), lambda: put(model, head=nn.Linear(4, 3))
    )
