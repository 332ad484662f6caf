"""Attributes that are read: numbers, flags, callables, nested objects, properties, slots, class attributes."""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, changed, points, put, repeated, step


class Scaled(nn.Module):
    """Reads what a test sets on it."""

    scale: Any

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        put(self, **{"scale": 1.0} | values)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x) * self.scale  # type: ignore[no-any-return]


@case(entries=2)
def float_attribute() -> Scenario:
    module = Scaled(scale=2.0)
    return changed(module, lambda: put(module, scale=3.0))


@case(entries=2)
def float_attribute_beside_one_that_is_set_before_every_call() -> Scenario:
    module = Scaled(scale=2.0)

    def drive(call: Call) -> Steps:
        for number in range(24):
            put(module, unread=number, scale=2.0 if number < 22 else 3.0)
            yield step(call, points(), of=module)

    return Scenario(module, drive)


@case()
def number_set_back() -> Scenario:
    module = Scaled(scale=2.0)
    return changed(module, lambda: put(module, scale=3.0), lambda: put(module, scale=2.0))


@case()
def type_of_a_number() -> Scenario:
    class Typed(Scaled):
        def forward(self, x: Tensor) -> Any:
            return self.lin(x), self.scale, type(self.scale).__name__

    module = Typed(scale=1)
    return changed(module, lambda: put(module, scale=1.0), lambda: put(module, scale=True))


@case(entries=2)
def grad_mode_of_a_part() -> Scenario:
    class Partly(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(self.scale):
                hidden = self.lin(x)
            return hidden * self.lin.weight.sum()  # type: ignore[no-any-return]

    module = Partly(scale=True)
    return changed(module, lambda: put(module, scale=False), lambda: put(module, scale=True))


@case(entries=4)
def number_beside_a_parameter_that_is_frozen() -> Scenario:
    class Counting(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            self.scale.append(self.lin.weight.shape[0])
            return x * 2

    module = Counting(scale=[])
    return changed(module, lambda: put(module.lin.weight, requires_grad=False))


@case()
def negative_zero() -> Scenario:
    class Divides(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full_like(x, self.scale) + x * 0 + 1 / (torch.zeros_like(x) * self.scale + self.scale)  # type: ignore[no-any-return]

    module = Divides(scale=0.0)
    return changed(module, lambda: put(module, scale=-0.0))


@case()
def not_a_number() -> Scenario:
    module = Scaled(scale=float("nan"))
    return changed(module, lambda: put(module, scale=float("nan")), lambda: put(module, scale=1.0))


@case(entries=2)
def flag_that_branches() -> Scenario:
    class Branches(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x) if self.scale else x * 2

    module = Branches(scale=True)
    return changed(module, lambda: put(module, scale=False), lambda: put(module, scale=True))


@case()
def string_that_selects() -> Scenario:
    class Selects(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return getattr(torch, self.scale)(self.lin(x))  # type: ignore[no-any-return]

    module = Selects(scale="tanh")
    return changed(module, lambda: put(module, scale="sigmoid"))


@case()
def activation_function() -> Scenario:
    class Activates(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return self.scale(self.lin(x))  # type: ignore[no-any-return]

    module = Activates(scale=torch.relu)
    return changed(module, lambda: put(module, scale=torch.tanh), lambda: put(module, scale=lambda y: y * 2))


@case()
def optional_module() -> Scenario:
    class Optional(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            return y if self.scale is None else self.scale(y)  # type: ignore[no-any-return]

    module = Optional(scale=None)
    return changed(module, lambda: put(module, scale=nn.Linear(4, 4)), lambda: put(module, scale=None))


@dataclass
class Rope:
    theta: float = 10.0
    kind: str = "default"


@dataclass
class Config:
    scale: float = 1.0
    rope: Rope = field(default_factory=Rope)


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.config.scale
        return y.sin() if self.config.rope.kind == "linear" else y / self.config.rope.theta


@case()
def dataclass_config() -> Scenario:
    module = Configured()
    return changed(module, lambda: put(module.config, scale=2.0))


@case()
def nested_config() -> Scenario:
    module = Configured()
    return changed(module, lambda: put(module.config.rope, theta=5.0), lambda: put(module.config.rope, kind="linear"))


@case()
def config_replaced_whole() -> Scenario:
    module = Configured()
    return changed(module, lambda: put(module, config=Config(scale=4.0)))


@case()
def namespace_config() -> Scenario:
    args = types.SimpleNamespace(dim=2, inner=types.SimpleNamespace(bias=0.5))
    return changed(lambda x: x.mean(-1) * args.dim + args.inner.bias, lambda: put(args.inner, bias=1.5))


class Slotted:
    __slots__ = ("__dict__", "alpha")

    def __init__(self) -> None:
        self.alpha = 0.5


@case()
def slots() -> Scenario:
    holder = Slotted()
    return changed(lambda x: x * holder.alpha, lambda: put(holder, alpha=1.5))


class Mode(enum.Enum):
    MEAN = "mean"
    SUM = "sum"


@case()
def enum_member() -> Scenario:
    class Pools(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            return y.mean(-1) if self.scale is Mode.MEAN else y.sum(-1)  # type: ignore[no-any-return]

    module = Pools(scale=Mode.MEAN)
    return changed(module, lambda: put(module, scale=Mode.SUM))


class Listed(enum.EnumMeta):
    def __contains__(cls, member: object) -> bool:
        return member in cls._value2member_map_


class Reduction(enum.StrEnum, metaclass=Listed):
    MEAN = "mean"
    SUM = "sum"


@case()
def enum_with_a_metaclass_of_its_own() -> Scenario:
    class Pools(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            assert self.scale in Reduction
            y = self.lin(x)
            return y.mean(-1) if self.scale == Reduction.MEAN else y.sum(-1)  # type: ignore[no-any-return]

    module = Pools(scale="mean")
    return changed(module, lambda: put(module, scale="sum"))


@case()
def flags_that_matter_together() -> Scenario:
    class Doubles(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            return y * 2 if self.scale and self.flag else y  # type: ignore[no-any-return]

    module = Doubles(scale=False, flag=False)
    return changed(
        module,
        lambda: put(module, scale=True),
        lambda: put(module, scale=False, flag=True),
        lambda: put(module, scale=True),
        lambda: put(module, flag=False),
    )


@case()
def property_over_a_field() -> Scenario:
    class Computes(Scaled):
        @property
        def factor(self) -> float:
            return float(self.scale) * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x) * self.factor  # type: ignore[no-any-return]

    module = Computes(scale=1.0)
    return changed(module, lambda: put(module, scale=3.0))


@case()
def getattr_over_a_dict() -> Scenario:
    class Flexible:
        def __init__(self) -> None:
            self.values = {"gain": 2.0}

        def __getattr__(self, name: str) -> float:
            try:
                return self.__dict__["values"][name]  # type: ignore[no-any-return]
            except KeyError:
                raise AttributeError(name) from None

    holder = Flexible()
    return changed(lambda x: x * holder.gain, lambda: holder.values.update(gain=3.0), lambda: put(holder, gain=5.0))


@case()
def getattr_with_a_default() -> Scenario:
    module = Scaled()
    return changed(
        lambda x: module.lin(x) * getattr(module, "gain", 1.0),
        lambda: put(module, gain=2.0),
        lambda: delattr(module, "gain"),
    )


@case()
def class_attribute() -> Scenario:
    class Fresh(Scaled):
        scale = 1.0

    module = Fresh()
    del module.scale
    return changed(module, lambda: put(Fresh, scale=2.0))


@case()
def attribute_that_shadows_the_class() -> Scenario:
    class Fresh(Scaled):
        scale = 1.0

    module = Fresh()
    del module.scale
    return changed(module, lambda: put(module, scale=2.0), lambda: delattr(module, "scale"))


@case()
def method_patched_on_the_class() -> Scenario:
    class Fresh(Scaled):
        def act(self, y: Tensor) -> Tensor:
            return y.relu()

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.lin(x))

    module = Fresh()
    return changed(module, lambda: put(Fresh, act=lambda self, y: y.tanh()))


@case()
def method_patched_on_the_instance() -> Scenario:
    class Fresh(Scaled):
        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.lin(x))

        def act(self, y: Tensor) -> Tensor:
            return y.relu()

    module = Fresh()
    return changed(module, lambda: put(module, act=torch.tanh), lambda: delattr(module, "act"))


@case()
def attribute_of_a_submodule() -> Scenario:
    inner = Scaled(scale=1.0)
    return changed(nn.Sequential(nn.Linear(4, 4), inner), lambda: put(inner, scale=0.5))


@case()
def plain_tensor_replaced() -> Scenario:
    module = Scaled()
    module.__dict__["scale"] = torch.ones(4)
    return changed(module, lambda: put(module, scale=torch.full((4,), 3.0)))


@case(entries=1)
def plain_tensor_written_in_place() -> Scenario:
    module = Scaled()
    scale = module.__dict__["scale"] = torch.ones(4)
    return changed(module, lambda: scale.mul_(3.0))


@case()
def whole_dict_by_vars() -> Scenario:
    config = Config()
    return changed(
        lambda x: x * sum(v for v in vars(config).values() if isinstance(v, float)), lambda: put(config, scale=2.0)
    )


@case(entries=1)
def unread_attributes_cost_nothing() -> Scenario:
    module = Scaled(scale=2.0, note="a")

    def drive(call: Call) -> Steps:
        for number in range(4):
            yield step(call, points(seed=number), of=module)
            put(module, note=f"epoch {number}", last_seen=number)

    return Scenario(module, drive)


class Shared(nn.Module):
    """Asks for what its class has by way of the class."""

    gain = 1.0
    calls = 0

    @classmethod
    def scaled(cls, x: Tensor) -> Tensor:
        return x * cls.gain

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return self.__class__.scaled(x) * type(self).gain + type(self).calls


@case(entries=8)
def class_of_the_module() -> Scenario:
    class Own(Shared):
        pass

    module = Own()

    def drive(call: Call) -> Steps:
        for gain in (1.0, 1.0, 2.0, 1.0):
            Own.gain = gain
            yield step(call, points()), Own.calls

    return Scenario(module, drive)


@case()
def class_as_an_argument() -> Scenario:
    class Options:
        rate = 1.0

    def drive(call: Call) -> Steps:
        for rate in (1.0, 2.0, 1.0):
            Options.rate = rate
            yield step(call, points(), Options)

    return Scenario(lambda x, options: x * options.rate, drive)


@case(entries=3)
def list_of_a_class_that_the_first_call_makes() -> Scenario:
    class Singleton:
        made: list[int]

        @classmethod
        def instance(cls) -> list[int]:
            if not hasattr(cls, "made"):
                cls.made = [0]
            cls.made[0] += 1
            return cls.made

    return repeated(lambda x: x * Singleton.instance()[0], lambda: Singleton.made, 3)


@case()
def weights_of_two_modules_that_are_tied_and_untied() -> Scenario:
    embedding, head = nn.Embedding(3, 4), nn.Linear(4, 3, bias=False)
    tokens = torch.tensor([0, 2])

    def drive(call: Call) -> Steps:
        own = [nn.Parameter(torch.full((3, 4), value)) for value in (1.0, 2.0)]
        for weight in (embedding.weight, own[0], embedding.weight, own[1]):
            head.weight = weight
            result = call(tokens)
            yield result, torch.autograd.grad(result.sum(), (head.weight, embedding.weight))

    return Scenario(lambda tokens: head(embedding(tokens)), drive)
