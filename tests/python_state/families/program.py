"""Random programs that read Python's state: a family makes one from a random stream, the runner changes its world.

A family is a function `family(rng) -> Program` under the decorator `family`, in any module of this folder. It makes its
whole world anew, classes and modules included, and draws from `rng` alone: the same seed has to give the same program.
"""

from __future__ import annotations

import functools
import linecache
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

#: Makes one random program.
Family = Callable[[Random], "Program"]
#: What a place does with its value.
Use = Callable[[Any, Tensor], Any]


@dataclass
class Program:
    """A function and its world.

    `calls` is given the function, plain or compiled, and returns what a round of calls shows. There are two rounds at
    first, and two after each of `change`.
    """

    target: Callable[..., Any]
    calls: Callable[[Callable[..., Any]], Any]
    change: tuple[Callable[[], object], ...] = ()
    about: str = ""


FAMILIES: dict[str, Family] = {}


def family(make: Family) -> Family:
    """Register a family by the name of its module and its own."""
    name = f"{make.__module__.rpartition('.')[2]}.{make.__name__}"
    assert name not in FAMILIES, name
    FAMILIES[name] = make
    return make


def source(text: str, **variables: Any) -> types.ModuleType:
    """A new module with these variables and this source, which looks like that of a user's file."""
    space = types.ModuleType("family_world")
    vars(space).update(variables)
    file = f"family_world_{abs(hash(text))}.py"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    exec(compile(text, file, "exec"), vars(space))
    return space


@dataclass
class Place:
    """Somewhere a value lies that a function uses; `put` puts another there."""

    name: str
    target: Callable[..., Any]
    put: Callable[[Any], object]
    #: Arguments of a call behind the tensor.
    arguments: list[Any] = field(default_factory=list)

    def program(self, *changes: Callable[[], object], about: str = "") -> Program:
        """Calls with a tensor that is the same in each."""

        def calls(call: Callable[..., Any]) -> Any:
            x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
            result = call(x, *self.arguments)
            ends = [part for part in _flat(result) if isinstance(part, Tensor) and part.requires_grad]
            loss = sum((end.double().square().sum() for end in ends), torch.zeros(()))
            return result, torch.autograd.grad(loss, x, allow_unused=True) if ends else None

        return Program(self.target, calls, changes, f"{self.name}: {about}")


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


class Box:
    """An object with attributes."""

    value: Any

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def new_box(**values: Any) -> Any:
    """An object of a class of its own."""
    return type("Box", (Box,), {})(**values)


def place(rng: Random, value: Any, use: Use, *, arguments: bool = True) -> Place:
    """A random place for a value that a function uses."""
    names = [name for name in PLACES if arguments or "argument" not in name]
    name = rng.choice(names)
    target, put, passed = PLACES[name](value, use)
    return Place(name, target, put, passed)


_Made = tuple[Callable[..., Any], Callable[[Any], object], list[Any]]


def _closure(value: Any, use: Use) -> _Made:
    def put(new: Any) -> None:
        nonlocal value
        value = new

    return lambda x: use(value, x), put, []


def _global(value: Any, use: Use) -> _Made:
    world = source("def read(x):\n    return use(value, x)\n", value=value, use=use)
    return world.read, functools.partial(setattr, world, "value"), []


def _of_module(value: Any, use: Use) -> _Made:
    world = types.ModuleType("family_settings")
    world.value = value  # type: ignore[attr-defined]
    return lambda x: use(world.value, x), functools.partial(setattr, world, "value"), []


def _of_self(value: Any, use: Use) -> _Made:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return use(self.value, x)

    net = Net()
    net.__dict__["value"] = value
    return net, functools.partial(net.__dict__.__setitem__, "value"), []


def _of_object(value: Any, use: Use) -> _Made:
    box = new_box(value=value)
    return lambda x: use(box.value, x), functools.partial(setattr, box, "value"), []


def _of_slots(value: Any, use: Use) -> _Made:
    class Slotted:
        __slots__ = ("value",)
        value: Any

    slotted = Slotted()
    slotted.value = value
    return lambda x: use(slotted.value, x), functools.partial(setattr, slotted, "value"), []


def _of_class(value: Any, use: Use) -> _Made:
    kind: Any = type("Settings", (), {"value": value})
    return lambda x: use(kind.value, x), functools.partial(setattr, kind, "value"), []


def _in_list(value: Any, use: Use) -> _Made:
    held = [0, value]
    return lambda x: use(held[1], x), functools.partial(held.__setitem__, 1), []


def _in_dict(value: Any, use: Use) -> _Made:
    held = {"value": value}
    return lambda x: use(held["value"], x), functools.partial(held.__setitem__, "value"), []


def _default(value: Any, use: Use) -> _Made:
    def read(x: Tensor, given: Any = value) -> Any:
        return use(given, x)

    return read, lambda new: setattr(read, "__defaults__", (new,)), []


def _by_method(value: Any, use: Use) -> _Made:
    class Reader:
        def __init__(self, value: Any) -> None:
            self.value = value

        def read(self, x: Tensor) -> Any:
            return use(self.value, x)

    reader = Reader(value)
    return reader.read, functools.partial(setattr, reader, "value"), []


def _argument(value: Any, use: Use) -> _Made:
    passed = [value]
    return lambda x, value: use(value, x), functools.partial(passed.__setitem__, 0), passed


def _in_argument(value: Any, use: Use) -> _Made:
    passed = [{"a": [value, 1]}]
    return lambda x, held: use(held["a"][0], x), lambda new: passed.__setitem__(0, {"a": [new, 1]}), passed


def _of_argument(value: Any, use: Use) -> _Made:
    box = new_box(value=value)
    return lambda x, box: use(box.value, x), functools.partial(setattr, box, "value"), [box]


PLACES: dict[str, Callable[[Any, Use], _Made]] = {
    "closure": _closure,
    "global": _global,
    "variable of a module": _of_module,
    "attribute of self": _of_self,
    "attribute of an object": _of_object,
    "slot": _of_slots,
    "attribute of a class": _of_class,
    "item of a list": _in_list,
    "item of a dict": _in_dict,
    "default": _default,
    "attribute of a method's self": _by_method,
    "argument": _argument,
    "inside of an argument": _in_argument,
    "attribute of an argument": _of_argument,
}
