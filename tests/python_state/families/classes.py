"""Operators, descriptors, properties, metaclasses and classes that are made: how a class answers for its instances."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import typing
from collections.abc import Callable
from random import Random
from typing import Any

from tests.python_state.families.program import Program, family, new_box, place

_OPERATORS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "add": ("__add__", lambda value: value + 1.0),
    "radd": ("__radd__", lambda value: 1.0 + value),
    "mul": ("__mul__", lambda value: value * 1.0),
    "matmul": ("__matmul__", lambda value: value @ 1.0),
    "neg": ("__neg__", lambda value: -value),
    "abs": ("__abs__", abs),
    "float": ("__float__", float),
    "int": ("__int__", lambda value: int(value) * 1.0),
    "index": ("__index__", lambda value: float([5.0, 6.0, 7.0, 8.0, 9.0, 4.0, 3.0][value])),
    "bool": ("__bool__", lambda value: 2.0 if value else 3.0),
    "len": ("__len__", lambda value: float(len(value))),
    "getitem": ("__getitem__", lambda value: value[0]),
    "contains": ("__contains__", lambda value: 2.0 if 1 in value else 3.0),
    "call": ("__call__", lambda value: value(1.0)),
    "eq": ("__eq__", lambda value: 2.0 if value == 2.0 else 3.0),
    "lt": ("__lt__", lambda value: 2.0 if value < 3.0 else 3.0),
    "hash": ("__hash__", lambda value: float(hash(value))),
    "round": ("__round__", lambda value: float(round(value))),
    "str": ("__str__", lambda value: float(str(value))),
    "repr": ("__repr__", lambda value: float(repr(value))),
    "format": ("__format__", lambda value: float(f"{value}")),
    "enter": ("__enter__", lambda value: _entered(value)),
    "getattr": ("__getattr__", lambda value: value.anything),
    "iadd": ("__iadd__", lambda value: _added(value)),
    "divmod": ("__divmod__", lambda value: float(divmod(value, 2.0))),
    "pow": ("__pow__", lambda value: value**2),
    "missing": ("__missing__", lambda value: value.__missing__("k")),
    "dir": ("__dir__", lambda value: float(len(dir(value)))),
    "sizeof": ("__length_hint__", lambda value: float(__import__("operator").length_hint(value))),
}


def _entered(value: Any) -> Any:
    with value as inside:
        return inside


def _added(value: Any) -> Any:
    total = value
    total += 1.0
    return total


def _method(name: str) -> Callable[..., Any]:
    """A special method that reads `self.a`."""
    if name in ("__bool__", "__contains__", "__eq__", "__lt__"):
        return lambda self, *args: self.a == 2.0
    if name in ("__int__", "__index__", "__len__", "__hash__", "__length_hint__"):
        return lambda self, *args: int(self.a)
    if name in ("__str__", "__repr__", "__format__"):
        return lambda self, *args: str(self.a)
    if name == "__dir__":
        return lambda self: ["x"] * int(self.a)
    if name == "__getattr__":
        return lambda self, name: self.__dict__["a"] if name == "anything" else _raise(name)
    return lambda self, *args: self.a


def _raise(name: str) -> Any:
    raise AttributeError(name)


@family
def operators_of_classes(rng: Random) -> Program:
    way = rng.choice([*_OPERATORS])
    name, use = _OPERATORS[way]
    space: dict[str, Any] = {"__init__": lambda self: setattr(self, "a", 2.0), name: _method(name)}
    if name == "__enter__":
        space["__exit__"] = lambda self, *error: None
    if name == "__eq__":
        space["__hash__"] = object.__hash__
    kind = type("Own", (), space)
    if rng.random() < 0.3:
        kind = type("Child", (kind,), {})
    value = kind()
    at = place(rng, value, lambda value, x: x * use(value))
    own = next(base for base in kind.__mro__ if name in vars(base))

    def other(self: Any, *args: Any) -> Any:
        old = _method(name)(self, *args)
        return (
            str(float(old) + 1)
            if isinstance(old, str)
            else old[:-1]
            if isinstance(old, list)
            else type(old)(not old)
            if isinstance(old, bool)
            else type(old)(old + 1)
        )

    steps: list[Callable[[], object]] = [
        functools.partial(setattr, value, "a", 5.0),
        functools.partial(setattr, own, name, other),
        functools.partial(setattr, value, "a", 6.0),
    ]
    return at.program(*rng.sample(steps, 2), about=way)


class Plain:
    """A descriptor without `__set__`."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else instance.b * self.factor


class Data(Plain):
    """A descriptor that wins over the instance's own."""

    def __set__(self, instance: Any, value: float) -> None:
        vars(instance)["b"] = value


class Named:
    """A descriptor that learns its name."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self.name = "_" + name

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else getattr(instance, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance, self.name, value)


@family
def descriptors_and_properties(rng: Random) -> Program:
    state = new_box(factor=2.0)

    class Own:
        plain = Plain(2.0)
        data = Data(2.0)
        named = Named()

        def __init__(self) -> None:
            self.b = 2.0
            self._named = 3.0

        @property
        def computed(self) -> float:
            return float(self.b * state.factor)

        @functools.cached_property
        def cached(self) -> float:
            return self.b * 3

        @classmethod
        def of_class(cls) -> float:
            return float(getattr(cls, "factor", 2.0))

        @staticmethod
        def static() -> float:
            return float(state.factor)

        @functools.cached_property
        def lazily(self) -> float:
            return float(state.factor)

    ways: dict[str, Callable[[Any], float]] = {
        "plain": lambda own: own.plain,
        "data": lambda own: own.data,
        "named": lambda own: own.named,
        "property": lambda own: own.computed,
        "cached": lambda own: own.cached,
        "classmethod": lambda own: own.of_class(),
        "static": lambda own: own.static(),
        "fget": lambda own: type(own).computed.fget(own),
        "super": lambda own: super(type(own), own).__getattribute__("b"),
        "class dict": lambda own: type(own).__dict__["plain"].__get__(own, type(own)),
        "lazily": lambda own: own.lazily,
    }
    way = rng.choice([*ways])
    own = Own()
    at = place(rng, own, lambda own, x: x * ways[way](own))
    steps: list[Callable[[], object]] = [
        functools.partial(setattr, own, "b", 5.0),
        functools.partial(setattr, state, "factor", 7.0),
        functools.partial(setattr, Own, "factor", 4.0),
        functools.partial(setattr, Own, "plain", Plain(6.0)),
        functools.partial(vars(own).__setitem__, "plain", 9.0),
        functools.partial(setattr, Own, "computed", property(lambda self: 8.0)),
        functools.partial(setattr, vars(Own)["data"], "factor", 6.0),
        functools.partial(vars(own).pop, "cached", None),
        functools.partial(setattr, own, "named", 8.0),
        functools.partial(setattr, Own, "static", staticmethod(lambda: 11.0)),
    ]
    return at.program(*rng.sample(steps, 4), about=way)


@family
def metaclasses(rng: Random) -> Program:
    class Meta(type):
        factor = 2.0

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            made = super().__call__(*args, **kwargs)
            made.b = cls.factor
            return made

        def __len__(cls) -> int:
            return int(cls.factor)

        def __contains__(cls, one: Any) -> bool:
            return bool(cls.factor == 2.0)

        def __instancecheck__(cls, instance: Any) -> bool:
            return bool(cls.factor == 2.0)

        @property
        def doubled(cls) -> float:
            return cls.factor * 2

        def __getitem__(cls, key: Any) -> Any:
            return cls.factor

        def __iter__(cls) -> Any:
            return iter([cls.factor])

    class Own(metaclass=Meta):
        pass

    ways: dict[str, Callable[[Any], float]] = {
        "call": lambda own: own().b,
        "len": lambda own: float(len(own)),
        "contains": lambda own: 2.0 if 1 in own else 3.0,
        "instance": lambda own: 2.0 if isinstance(1, own) else 3.0,
        "property": lambda own: own.doubled,
        "attribute": lambda own: own.factor,
        "item": lambda own: own[0],
        "iteration": lambda own: sum(own),
        "type": lambda own: type(own).factor,
    }
    way = rng.choice([*ways])
    at = place(rng, Own, lambda own, x: x * ways[way](own))
    steps: list[Callable[[], object]] = [
        functools.partial(setattr, Meta, "factor", 5.0),
        functools.partial(setattr, Own, "factor", 6.0),
        functools.partial(setattr, Meta, "__len__", lambda cls: 7),
        functools.partial(setattr, Meta, "__contains__", lambda cls, one: False),
    ]
    return at.program(*rng.sample(steps, 2), about=way)


@family
def classes_that_are_made(rng: Random) -> Program:
    state = new_box(a=2.0)

    class Base:
        registry: typing.ClassVar[list[str]] = []

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            cls.scale = state.a  # type: ignore[attr-defined]

    def by_statement() -> float:
        class Made(Base):
            k = state.a

        return float(Made.k + Made.scale)  # type: ignore[attr-defined]

    def by_type() -> float:
        return float(type("Made", (Base,), {"k": state.a})().k)

    def by_namedtuple() -> float:
        pair = collections.namedtuple("pair", "a b")
        return float(pair(state.a, 1).a)

    def by_dataclass() -> float:
        made = dataclasses.make_dataclass("Made", [("a", float, dataclasses.field(default=state.a))])
        return float(made().a)

    def by_enum() -> float:
        functional: Any = enum.Enum
        made = functional("Made", {"A": state.a})
        return float(made.A.value)

    def by_replace() -> float:
        @dataclasses.dataclass(frozen=True)
        class Point:
            a: float = 1.0

        return float(dataclasses.replace(Point(), a=state.a).a)

    def by_subclasses() -> float:
        return float(len(Base.__subclasses__())) + 1

    def by_abstract() -> float:
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self) -> float: ...

        class Square(Shape):
            def area(self) -> float:
                return float(state.a)

        return Square().area()

    ways = (by_statement, by_type, by_namedtuple, by_dataclass, by_enum, by_replace, by_subclasses, by_abstract)
    read = rng.choice(ways)
    kept: list[Any] = []
    at = place(rng, read, lambda read, x: x * read(), arguments=False)
    steps: list[Callable[[], object]] = [
        functools.partial(setattr, state, "a", 5.0),
        lambda: kept.append(type("Late", (Base,), {})),
        lambda: setattr(Base, "__init_subclass__", classmethod(lambda cls: setattr(cls, "scale", 11.0))),
    ]
    return at.program(*steps[: rng.randint(1, 3)], about=read.__name__)


@family
def registered_classes(rng: Random) -> Program:
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        a = 2.0

    @functools.singledispatch
    def area(shape: Any) -> float:
        return 2.0

    @typing.runtime_checkable
    class HasArea(typing.Protocol):
        def area(self) -> float: ...

    ways: dict[str, Callable[[Any], float]] = {
        "isinstance": lambda square: 2.0 if isinstance(square, Shape) else 3.0,
        "isinstance of a list": lambda square: 2.0 if isinstance([square], Shape) else 3.0,
        "issubclass": lambda square: 2.0 if issubclass(type(square), Shape) else 3.0,
        "singledispatch": lambda square: area(square),
        "protocol": lambda square: 2.0 if isinstance(square, HasArea) else 3.0,
    }
    way = rng.choice([*ways])
    at = place(rng, Square(), lambda square, x: x * ways[way](square))

    def register() -> None:
        Shape.register(Square)
        area.register(Square, lambda square: 7.0)
        Square.area = lambda self: 1.0  # type: ignore[attr-defined]

    return at.program(register, about=way)


@family
def bases_that_change(rng: Random) -> Program:
    class One:
        a = 2.0

        def read(self) -> float:
            return self.a

    class Two(One):
        a = 5.0

        def read(self) -> float:
            return self.a * 2

    class Own(One):
        pass

    own = Own()
    ways: dict[str, Callable[[Any], float]] = {
        "attribute": lambda own: own.a,
        "method": lambda own: own.read(),
        "mro": lambda own: float(len(type(own).__mro__)),
        "isinstance": lambda own: 2.0 if isinstance(own, Two) else 3.0,
        "class": lambda own: type(own).a,
    }
    way = rng.choice([*ways])
    at = place(rng, own, lambda own, x: x * ways[way](own))

    def swap_class() -> None:
        own.__class__ = Two  # type: ignore[assignment]

    def swap_bases() -> None:
        Own.__bases__ = (Two,)

    return at.program(rng.choice([swap_bases, swap_class]), about=way)
