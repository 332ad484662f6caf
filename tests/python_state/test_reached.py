"""Objects that a function reaches, by each way: a change of one that it reads is seen, and a change beside is not."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import switchgear as sg
from tests.in_turn import in_turn

X = torch.ones(2)
SETTINGS: dict[str, Any] = {"factor": 2.0, "beside": 1.0}


class Base:
    """A base class with a method, a property and an attribute."""

    inherited = 2.0

    def __init__(self) -> None:
        self.own, self.beside = 2.0, 1.0

    def method(self) -> float:
        return self.own

    @property
    def computed(self) -> float:
        return self.own

    @classmethod
    def of_class(cls) -> float:
        return cls.inherited


class Slotted:
    """Has slots, and no `__dict__`."""

    __slots__ = ("beside", "own")

    def __init__(self) -> None:
        self.own, self.beside = 2.0, 1.0


class Called:
    """Special methods."""

    def __init__(self) -> None:
        self.own, self.beside = 2.0, 1.0

    def __call__(self) -> float:
        return self.own

    def __len__(self) -> int:
        return int(self.own)

    def __getitem__(self, place: int) -> float:
        return self.own + place

    def __contains__(self, value: float) -> bool:
        return value == self.own

    def __getattr__(self, name: str) -> float:
        if name != "made_up":
            raise AttributeError(name)
        return self.own


@dataclasses.dataclass
class Data:
    """A dataclass that holds others."""

    own: float = 2.0
    beside: float = 1.0
    inner: Any = None


class Level(enum.Enum):
    """An enumeration."""

    LOW = 2.0
    HIGH = 3.0


class Pair(NamedTuple):
    """A named tuple."""

    own: Any
    beside: Any


class Net(nn.Module):
    """A module with state of every kind."""

    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.own, self.beside = 2.0, 1.0
        self.register_buffer("factor", torch.full((2,), 2.0))
        self.parts = nn.ModuleList([nn.Dropout(0.0), nn.Identity()])


def change(holder: Any, name: str = "own", value: Any = 3.0) -> Callable[[], object]:
    return lambda: setattr(holder, name, value)


def put(holder: Any, key: Any, value: Any = 3.0) -> Callable[[], object]:
    return lambda: holder.__setitem__(key, value)


#: The function, a change that it does not read, and one that it does.
Case = tuple[Callable[[Tensor], Any], Callable[[], object], Callable[[], object]]


def attribute(kind: type, read: Callable[[Any], Any]) -> Case:
    """Of an object of a class with the attributes `own` and `beside`."""
    holder = kind()
    return lambda x: x * read(holder), change(holder, "beside", 5.0), change(holder)


def item(holder: Any, key: Any, beside: Any, read: Callable[[Any], Any]) -> Case:
    """Of a container."""
    return lambda x: x * read(holder), put(holder, beside, holder[beside]), put(holder, key)


def a_closure() -> Case:
    factor, beside = 2.0, 1.0

    def function(x: Tensor) -> Tensor:
        return x * factor

    def set_factor() -> None:
        nonlocal factor
        factor = 3.0

    def set_beside() -> None:
        nonlocal beside
        beside += 1.0

    return function, set_beside, set_factor


def a_global() -> Case:
    def function(x: Tensor) -> Any:
        return x * SETTINGS["factor"]

    SETTINGS["factor"] = 2.0
    return function, put(SETTINGS, "beside", 1.0), put(SETTINGS, "factor")


def defaults() -> Case:
    def helper(x: Tensor, factor: float = 2.0, *, more: float = 1.0) -> Tensor:
        return x * factor * more

    return lambda x: helper(x), change(helper, "note", 1), change(helper, "__defaults__", (3.0,))


def keyword_defaults() -> Case:
    def helper(x: Tensor, *, more: float = 2.0) -> Tensor:
        return x * more

    return lambda x: helper(x), change(helper, "__doc__", "other"), change(helper, "__kwdefaults__", {"more": 3.0})


def code_of_a_function() -> Case:
    def helper(x: Tensor) -> Tensor:
        return x * 2

    other = (lambda x: x * 3).__code__
    return lambda x: helper(x), change(helper, "note", 1), change(helper, "__code__", other)


def attribute_of_a_function() -> Case:
    def helper(x: Tensor) -> Tensor:
        return x * helper.factor  # type: ignore[attr-defined, no-any-return]

    helper.factor = 2.0  # type: ignore[attr-defined]
    return lambda x: helper(x), change(helper, "note", 1), change(helper, "factor")


def a_partial() -> Case:
    factors = [2.0]
    part = functools.partial(lambda held, x: x * held[0], factors)
    return lambda x: part(x), put(factors, 0, 2.0), put(factors, 0)


def a_bound_method() -> Case:
    holder = Base()
    method = holder.method
    return lambda x: x * method(), change(holder, "beside"), change(holder)


def a_method_that_is_replaced() -> Case:
    kind = type("Own", (Base,), {})
    holder = kind()
    return lambda x: x * holder.method(), change(holder, "beside"), change(kind, "method", lambda self: 3.0)


def an_inherited_attribute() -> Case:
    base = type("Middle", (Base,), {})
    holder = type("Own", (base,), {})()
    return lambda x: x * holder.inherited, change(holder, "beside"), change(base, "inherited")


def a_class_method() -> Case:
    kind: Any = type("Own", (Base,), {})
    return lambda x: x * kind.of_class(), change(kind, "__doc__", "other"), change(kind, "inherited")


def a_missing_attribute() -> Case:
    holder = Base()

    def function(x: Tensor) -> Tensor:
        try:
            return x * holder.missing  # type: ignore[attr-defined, no-any-return]
        except AttributeError:
            return x * 2

    return function, change(holder, "beside"), change(holder, "missing")


def a_class() -> Case:
    holder = Base()
    other = type("Own", (Base,), {})
    return (
        lambda x: x * (2 if type(holder) is Base else 3),
        change(holder, "beside"),
        change(holder, "__class__", other),
    )


def a_namespace() -> Case:
    holder = types.SimpleNamespace(own=2.0, beside=1.0)
    return lambda x: x * holder.own, change(holder, "own", 2.0), change(holder)


def nested() -> Case:
    holder = Data(inner={"a": [Data(), (Data(), 1.0)]})
    return (
        lambda x: x * holder.inner["a"][1][0].own,
        change(holder.inner["a"][0]),
        change(holder.inner["a"][1][0]),
    )


def an_enumeration() -> Case:
    holder = Data(inner=Level.LOW)
    return lambda x: x * holder.inner.value, change(holder), change(holder, "inner", Level.HIGH)


def a_named_tuple() -> Case:
    holder = Data(inner=Pair(2.0, 1.0))
    return lambda x: x * holder.inner.own, change(holder), change(holder, "inner", Pair(3.0, 1.0))


def a_set() -> Case:
    holder, other = {1.0}, [1]
    return lambda x: x * (3 if 2.0 in holder else 2), lambda: other.append(1), lambda: holder.add(2.0)


def attribute_of_a_module() -> Case:
    net = Net()
    return lambda x: x * net.own, change(net, "beside"), change(net)


def flag_of_a_module() -> Case:
    net = Net()
    return lambda x: x * (3 if net.training else 2), change(net, "beside"), change(net, "training", False)


def buffer_of_a_module() -> Case:
    net = Net()
    return lambda x: x * net.factor, change(net, "beside"), change(net, "factor", torch.full((2,), 3.0))


def part_of_a_module() -> Case:
    net = Net()
    return lambda x: net.parts[1](x) * 2, change(net, "beside"), put(net.parts, 1, nn.Threshold(1.0, 7.0))


def a_tensor_in_a_list() -> Case:
    tensors = [torch.full((2,), 2.0), X]
    return lambda x: x * tensors[0], put(tensors, 1, X), put(tensors, 0, torch.full((2,), 3.0))


CASES: dict[str, Callable[[], Case]] = {
    "method": lambda: attribute(Base, lambda one: one.method()),
    "property": lambda: attribute(Base, lambda one: one.computed),
    "slot": lambda: attribute(Slotted, lambda one: one.own),
    "getattr": lambda: attribute(Base, lambda one: getattr(one, "ow" + "n", 1.0)),
    "getattr with a default": lambda: attribute(Slotted, lambda one: getattr(one, "own", 1.0)),
    "vars": lambda: (lambda one: (lambda x: x * vars(one)["own"], lambda: None, change(one)))(Base()),
    "call": lambda: attribute(Called, lambda one: one()),
    "len": lambda: attribute(Called, len),
    "brackets": lambda: attribute(Called, lambda one: one[1]),
    "in": lambda: attribute(Called, lambda one: 2 + (3.0 in one)),
    "made up": lambda: attribute(Called, lambda one: one.made_up),
    "dataclass": lambda: attribute(Data, lambda one: one.own),
    "list": lambda: item([2.0, 1.0], 0, 1, lambda held: held[0]),
    "list, iterated": lambda: item([2.0, 1.0], 0, 1, sum),
    "dict": lambda: item({"a": 2.0, "b": 1.0}, "a", "b", lambda held: held["a"]),
    "dict, get": lambda: item({"a": 2.0, "b": 1.0}, "a", "b", lambda held: held.get("a", 1.0)),
    "dict, a new key": lambda: item({"b": 2.0}, "a", "b", lambda held: held.get("a", 2.0)),
    "dict, iterated": lambda: item({"a": 2.0, "b": 1.0}, "a", "b", lambda held: sum(held.values())),
    "dict, its length": lambda: item({"b": 1.0}, "a", "b", lambda held: 1 + len(held)),
    "ordered dict": lambda: item(collections.OrderedDict(a=2.0, b=1.0), "a", "b", lambda held: held["a"]),
    "default dict": lambda: item(collections.defaultdict(float, a=2.0, b=1.0), "a", "b", lambda held: held["a"]),
    "deque": lambda: item(collections.deque([2.0, 1.0]), 0, 1, lambda held: held[0]),
    **{
        made.__name__.replace("_", " "): made
        for made in (
            *(a_closure, a_global, defaults, keyword_defaults, code_of_a_function, attribute_of_a_function, a_partial),
            *(a_bound_method, a_method_that_is_replaced, an_inherited_attribute, a_class_method, a_missing_attribute),
            *(a_class, a_namespace, nested, an_enumeration, a_named_tuple, a_set, attribute_of_a_module),
            *(flag_of_a_module, buffer_of_a_module, part_of_a_module, a_tensor_in_a_list),
        )
    },
}


@in_turn(name=CASES)
def test_a_change_of_what_is_read_is_seen(name: str) -> None:
    function, beside, seen = CASES[name]()
    jitted = sg.jit(function, executors=["torch"], strict=True, dynamic=False)
    for _ in range(2):
        for _ in range(2):
            assert torch.equal(jitted(X), function(X))
        beside()
    assert sg.cache_info(jitted).misses == 1
    before = function(X)
    seen()
    assert not torch.equal(function(X), before)
    for _ in range(2):
        assert torch.equal(jitted(X), function(X))
    assert sg.cache_info(jitted).misses <= 2
