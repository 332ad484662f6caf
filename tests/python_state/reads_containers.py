"""Lists, dicts, sets, tuples and deques that are read: what they hold, their order, their length."""

from __future__ import annotations

import types
from collections import ChainMap, OrderedDict, defaultdict, deque
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, case, changed, points, put, step


@case()
def number_in_a_list() -> Scenario:
    scales = [1.0, 2.0]
    return changed(lambda x: x * scales[1], lambda: scales.__setitem__(1, 3.0))


@case()
def list_that_grows() -> Scenario:
    scales = [1.0]
    return changed(lambda x: sum(x * scale for scale in scales), lambda: scales.append(2.0), lambda: scales.append(3.0))


@case()
def length_of_a_list() -> Scenario:
    callbacks: list[str] = []
    return changed(lambda x: x / (1 + len(callbacks)), lambda: callbacks.append("logger"))


@case()
def emptiness() -> Scenario:
    stages: list[Any] = []
    return changed(lambda x: x.relu() if stages else x, lambda: stages.append(None), stages.clear)


@case()
def value_in_a_dict() -> Scenario:
    weights = {"loss": 1.0, "aux": 0.1}
    return changed(lambda x: x.mean() * weights["loss"] + x.std() * weights["aux"], lambda: weights.update(aux=0.5))


@case()
def key_that_appears() -> Scenario:
    options: dict[str, float] = {}
    return changed(lambda x: x * options.get("scale", 1.0), lambda: options.update(scale=2.0), options.clear)


@case()
def order_of_a_dict() -> Scenario:
    steps: OrderedDict[str, Any] = OrderedDict(double=lambda x: x * 2, plus=lambda x: x + 1)

    def chained(x: Tensor) -> Tensor:
        for function in steps.values():
            x = function(x)
        return x

    return changed(chained, lambda: steps.move_to_end("double"))


@case()
def membership_in_a_set() -> Scenario:
    frozen = {"b"}
    return changed(lambda x: x.detach() if "a" in frozen else x * 2, lambda: frozen.add("a"))


@case()
def tuple_attribute() -> Scenario:
    holder = types.SimpleNamespace(axes=(0,))
    return changed(lambda x: x.sum(holder.axes), lambda: put(holder, axes=(0, 1)))


@case()
def nested_containers() -> Scenario:
    tree = {"layers": [{"scale": 1.0}, {"scale": 2.0}]}
    return changed(
        lambda x: x * tree["layers"][0]["scale"] + tree["layers"][1]["scale"],
        lambda: tree["layers"][1].update(scale=5.0),
    )


@case()
def tensor_in_a_list() -> Scenario:
    weights = [torch.ones(4), torch.ones(4)]
    return changed(lambda x: x @ weights[0] + x @ weights[1], lambda: weights.__setitem__(0, torch.arange(4.0)))


@case()
def plain_list_of_modules() -> Scenario:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    module = Stack()
    return changed(
        module,
        lambda: module.layers.__setitem__(0, nn.Linear(4, 4)),
        lambda: module.layers.append(nn.Tanh()),  # type: ignore[arg-type]
    )


@case()
def plain_dict_of_modules() -> Scenario:
    heads: dict[str, nn.Module] = {"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)}
    chosen = ["a"]
    return changed(lambda x: heads[chosen[0]](x), lambda: chosen.__setitem__(0, "b"), lambda: heads.update(b=nn.ReLU()))


@case()
def deque_of_numbers() -> Scenario:
    window = deque([1.0, 2.0], maxlen=2)
    return changed(lambda x: x * (sum(window) / len(window)), lambda: window.append(6.0))


@case()
def default_dict() -> Scenario:
    scales: defaultdict[str, float] = defaultdict(lambda: 1.0, a=2.0)
    return changed(lambda x: x * scales["a"], lambda: scales.update(a=3.0))


@case()
def chain_of_maps() -> Scenario:
    user: dict[str, float] = {}
    settings = ChainMap(user, {"scale": 1.0})
    return changed(lambda x: x * settings["scale"], lambda: user.update(scale=2.0))


@case()
def subclass_of_dict() -> Scenario:
    class AttrDict(dict[str, Any]):
        def __getattr__(self, name: str) -> Any:
            return self[name]

    config = AttrDict(scale=1.0)
    return changed(lambda x: x * config.scale, lambda: config.update(scale=2.0))


@case()
def types_in_a_list() -> Scenario:
    dims: list[Any] = [1]

    def shaped(x: Tensor) -> Any:
        return x * 2, [type(dim).__name__ for dim in dims]

    return changed(shaped, lambda: dims.__setitem__(0, 1.0), lambda: dims.__setitem__(0, True))


@case(entries=4)
def list_that_matters_from_its_third_length_on() -> Scenario:
    marks = [1]

    def drive(call: Call) -> Steps:
        for mark in (2, 3, 4, 5):
            yield step(call, points(3))
            marks.append(mark)

    return Scenario(lambda x: x * 2 if len(marks) < 3 else x * 3, drive)


@case(entries=2)
def large_table() -> Scenario:
    table = {f"layer{number}": float(number) for number in range(20)}
    return changed(
        lambda x: x * table["layer3"],
        lambda: table.update(layer3=5.0),
        lambda: table.update(layer3=3.0),
        lambda: table.update(layer3=5.0),
    )


@case(entries=1)
def large_table_written_back() -> Scenario:
    table = {f"layer{number}": float(number) for number in range(20)}

    def there_and_back() -> None:
        table["layer3"] = 7.0
        table["layer3"] = 3.0

    return changed(lambda x: x * table["layer3"], there_and_back, there_and_back)


@case(entries=2)
def tuple_replaced_by_an_equal_one() -> Scenario:
    holder = types.SimpleNamespace(shape=(2, 6))
    return changed(
        lambda x: x.reshape(holder.shape),
        lambda: put(holder, shape=tuple(map(int, (2, 6)))),
        lambda: put(holder, shape=tuple(map(int, (6, 2)))),
        lambda: put(holder, shape=tuple(map(int, (6, 2)))),
    )


@case(entries=2)
def default_that_is_replaced() -> Scenario:
    def scaled(x: Tensor, by: tuple[float, float] = (2.0, 3.0)) -> Tensor:
        return x * by[0] + by[1]

    return changed(
        lambda x: scaled(x),
        lambda: put(scaled, __defaults__=(tuple(map(float, (2.0, 3.0))),)),
        lambda: put(scaled, __defaults__=((4.0, 3.0),)),
    )


@case(entries=2)
def registry_of_functions() -> Scenario:
    registry: dict[str, Any] = {f"unused{number}": torch.cos for number in range(12)} | {"act": torch.relu}
    return changed(lambda x: registry["act"](x), lambda: registry.update(act=torch.sigmoid))


@case()
def numbers_by_parameter() -> Scenario:
    weight = nn.Parameter(torch.ones(4))
    state = {weight: {"rate": 2.0}}
    return changed(lambda x: x * weight * state[weight]["rate"], lambda: state[weight].update(rate=3.0))


@case()
def class_in_a_registry() -> Scenario:
    class Scaling:
        factor = 2.0

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.factor

    registry = {"scaling": Scaling}
    return changed(lambda x: registry["scaling"]()(x), lambda: put(Scaling, factor=3.0))
