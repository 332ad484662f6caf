"""What is not there when a call is captured, and is later; and what is there and goes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.families.program import Program, family, new_box, place, source


def _by_try(value: Any, x: Tensor) -> Any:
    try:
        return x * value.extra
    except AttributeError:
        return x * 5


#: Ways to ask an object for an attribute.
ASKED: dict[str, Callable[[Any, Tensor], Any]] = {
    "hasattr": lambda value, x: x * (2 if hasattr(value, "extra") else 3),
    "getattr": lambda value, x: x * getattr(value, "extra", 7.0),
    "getattr None": lambda value, x: x * 2 if getattr(value, "extra", None) is None else x * value.extra,
    "try": _by_try,
    "vars": lambda value, x: x * vars(value).get("extra", 7.0),
    "__dict__": lambda value, x: x * (2 if "extra" in value.__dict__ else 3),
    "dir": lambda value, x: x * (2 if "extra" in dir(value) else 3),
    "computed": lambda value, x: x * getattr(value, "ex" + "tra", 7.0),
    "count": lambda value, x: x * (len(vars(value)) + 1),
}


def _gains(rng: Random, value: Any) -> list[Callable[[], object]]:
    changes: list[Callable[[], object]] = [functools.partial(setattr, value, "extra", rng.choice([2.5, 4, True]))]
    if rng.random() < 0.6:
        changes.append(functools.partial(delattr, value, "extra"))
    if rng.random() < 0.3:
        changes.append(functools.partial(setattr, value, "extra", 6.0))
    return changes


@family
def tensor_gains_an_attribute(rng: Random) -> Program:
    value = torch.tensor([2.0, 1.0, 0.5])
    if rng.random() < 0.3:
        value.requires_grad_()
    asked = rng.choice([*ASKED])
    at = place(rng, value, ASKED[asked])
    return at.program(*_gains(rng, value), about=asked)


@family
def another_tensor_has_an_attribute(rng: Random) -> Program:
    asked = rng.choice([*ASKED])
    values = [torch.tensor([2.0, 1.0, 0.5]) for _ in range(3)]
    values[rng.randrange(3)].extra = rng.choice([2.5, 4])  # type: ignore[attr-defined]
    at = place(rng, values[0], ASKED[asked])
    return at.program(*[functools.partial(at.put, value) for value in values[1:]], about=asked)


@family
def part_of_a_module_gains_an_attribute(rng: Random) -> Program:
    asked = rng.choice([*ASKED])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("offset", torch.ones(3))
            self.plain = torch.ones(3)
            self.held = [torch.ones(3)]

        def forward(self, x: Tensor) -> Any:
            return ASKED[asked]({"held": self.held[0]}.get(which) if which == "held" else getattr(self, which), x)

    net, which = Net(), rng.choice(["weight", "offset", "plain", "held"])
    tensor: Any = net.held[0] if which == "held" else getattr(net, which)
    at = place(rng, net, lambda net, x: net(x))
    return at.program(*_gains(rng, tensor), about=f"{which}, {asked}")


def _registers(rng: Random, module: nn.Module) -> list[Callable[[], object]]:
    """Ways to give a module what it had not, and to take it away again."""
    ways: list[Callable[[], object]] = [
        lambda: module.register_buffer("extra", torch.full((3,), 2.0)),
        lambda: module.register_parameter("extra", nn.Parameter(torch.full((3,), 3.0))),
        lambda: setattr(module, "extra", nn.Parameter(torch.full((3,), 4.0))),
        lambda: setattr(module, "extra", 2.5),
    ]
    changes: list[Callable[[], object]] = []
    for _ in range(rng.choice([1, 1, 2])):
        changes += [rng.choice(ways), functools.partial(delattr, module, "extra")]
    return changes[: rng.randrange(1, len(changes) + 1)]


#: Ways to ask a module.
ASKED_MODULE = {name: ASKED[name] for name in ("hasattr", "getattr", "try", "computed", "getattr None")} | {
    "_buffers": lambda value, x: x * (2 if "extra" in value._buffers else 3),
    "named_parameters": lambda value, x: x * (1 + len([*value.named_parameters()])),
    "named_buffers": lambda value, x: x * (1 + len(dict(value.named_buffers()))),
    "state_dict": lambda value, x: x * (1 + len(value.state_dict())),
}


def _modules(rng: Random) -> nn.Module:
    class Custom(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    kinds: list[Callable[[], nn.Module]] = [
        lambda: nn.Linear(3, 3),
        lambda: nn.Sequential(nn.Tanh()),
        Custom,
        nn.Identity,
    ]
    return rng.choice(kinds)()


@family
def module_outside_gains_a_part(rng: Random) -> Program:
    module = _modules(rng)
    asked = rng.choice([*ASKED_MODULE])
    at = place(rng, module, ASKED_MODULE[asked])
    return at.program(*_registers(rng, module), about=f"{type(module).__name__}, {asked}")


@family
def module_gains_a_submodule(rng: Random) -> Program:
    module = _modules(rng)
    uses: dict[str, Callable[[Any, Tensor], Any]] = {
        "hasattr": lambda value, x: x * (2 if hasattr(value, "extra") else 3),
        "called": lambda value, x: x * 2 if getattr(value, "extra", None) is None else value.extra(x),
        "children": lambda value, x: x * (1 + len([*value.children()])),
        "_modules": lambda value, x: x * (2 if "extra" in value._modules else 3),
        "modules": lambda value, x: x * len([*value.modules()]),
    }
    asked = rng.choice([*uses])
    at = place(rng, module, uses[asked])
    ways: list[Callable[[], object]] = [
        lambda: module.add_module("extra", nn.Tanh()),
        lambda: setattr(module, "extra", nn.Sigmoid()),
        lambda: module.register_module("extra", nn.Identity()),
    ]
    ways = [rng.choice(ways), functools.partial(delattr, module, "extra")]
    changes = ways[: rng.randrange(1, 3)]
    return at.program(*changes, about=f"{type(module).__name__}, {asked}")


#: Ways to ask an object for what its class may get.
ASKED_CLASS: dict[str, Callable[[Any, Tensor], Any]] = {
    **{name: ASKED[name] for name in ("hasattr", "getattr", "try", "dir", "computed", "getattr None")},
    "method": lambda value, x: x * (value.tell() if hasattr(value, "tell") else 7.0),
    "truth": lambda value, x: x * (2 if value else 3),
    "callable": lambda value, x: x * (2 if callable(value) else 3),
    "of the class": lambda value, x: x * getattr(type(value), "extra", 7.0),
    "equal": lambda value, x: x * (2 if value == 5 else 3),
    "with": lambda value, x: x * (2 if hasattr(value, "__enter__") else 3),
}


@family
def class_gains_something(rng: Random) -> Program:
    base = rng.choice([object, object, nn.Module])
    kind: Any = type("Kind", (base,), {})
    derived: Any = type("Derived", (kind,), {}) if rng.random() < 0.5 else kind
    value = derived()
    if rng.random() < 0.3:
        vars(value)["extra"] = 3.0
    asked = rng.choice([*ASKED_CLASS])
    at = place(rng, value, ASKED_CLASS[asked])
    gains: list[Callable[[], object]] = [
        lambda: setattr(kind, "extra", 2.5),
        lambda: setattr(kind, "extra", property(lambda self: 4.5)),
        lambda: setattr(kind, "tell", lambda self: 2.0),
        lambda: setattr(kind, "__len__", lambda self: 0),
        lambda: setattr(kind, "__bool__", lambda self: False),
        lambda: setattr(kind, "__eq__", lambda self, other: other == 5),
        lambda: setattr(kind, "__call__", lambda self, *args: 0),
        lambda: setattr(kind, "__enter__", lambda self: self),
        lambda: setattr(kind, "__getattr__", lambda self, name: 9.0 if name == "extra" else _raise(name)),
    ]
    named = {"method": [2], "truth": [3, 4], "equal": [5], "callable": [6], "with": [7]}
    changes = [gains[rng.choice(named.get(asked, [0, 0, 1, 8]))]]
    if rng.random() < 0.4:
        changes.append(rng.choice(gains[:2]))
    return at.program(*changes, about=f"{base.__name__}, {asked}")


def _raise(name: str) -> Any:
    raise AttributeError(name)


@family
def class_itself_gains_an_attribute(rng: Random) -> Program:
    kind: Any = type("Kind", (type("Base", (), {}),), {})
    asked = rng.choice(["hasattr", "getattr", "try", "computed", "dir"])
    at = place(rng, kind, ASKED[asked])
    gaining = rng.choice([kind, kind.__bases__[0]])
    return at.program(*_gains(rng, gaining), about=asked)


@family
def variable_hides_a_builtin(rng: Random) -> Program:
    name, text = rng.choice(
        [
            ("len", "x * len([1, 2])"),
            ("max", "x * max(1, 2)"),
            ("range", "x * sum(i for i in range(3))"),
            ("isinstance", "x * (2 if isinstance(x, int) else 3)"),
            ("float", "x * float('2')"),
            ("abs", "x * abs(-2)"),
        ]
    )
    nested = rng.random() < 0.4
    body = f"def helper(x):\n    return {text}\ndef read(x):\n    return helper(x)\n"
    world = source(body if nested else f"def read(x):\n    return {text}\n")
    at = place(rng, world.read, lambda read, x: read(x), arguments=False)
    hides = functools.partial(setattr, world, name, lambda *args: 9)
    shows = functools.partial(delattr, world, name)
    return at.program(*[hides, shows][: rng.randrange(1, 3)], about=name)


@family
def object_gains_an_attribute(rng: Random) -> Program:
    value = new_box(other=1)
    asked = rng.choice([*ASKED])
    at = place(rng, value, ASKED[asked])
    return at.program(*_gains(rng, value), about=asked)
