"""Reads that functions written in C make, copies, iteration, generators, and objects that look at others."""

from __future__ import annotations

import collections
import contextvars
import copy
import dataclasses
import functools
import heapq
import itertools
import json
import operator
import pickle
import types
import weakref
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.families.program import Program, family, new_box, place, source


@dataclasses.dataclass
class Settings:
    """A dataclass."""

    a: float = 2.0
    inner: Any = None


class Slotted:
    """Attributes without a dict."""

    __slots__ = ("a", "inner")

    def __init__(self, a: float, inner: Any = None) -> None:
        self.a, self.inner = a, inner


class Dynamic(nn.Module):
    """A module with a plain attribute."""

    def __init__(self, a: float, inner: Any = None) -> None:
        super().__init__()
        self.a, self.inner = a, inner


def thing(rng: Random) -> Any:
    """An object with the attributes `a`, a float, and `inner`, maybe another such object."""
    inner = new_box(a=3.0) if rng.random() < 0.4 else None
    kinds: list[Callable[[], Any]] = [
        lambda: new_box(a=2.0, inner=inner),
        lambda: Settings(2.0, inner),
        lambda: Slotted(2.0, inner),
        lambda: Dynamic(2.0, inner),
        lambda: types.SimpleNamespace(a=2.0, inner=inner),
        lambda: type("Child", (Settings,), {})(2.0, inner),
    ]
    return rng.choice(kinds)()


def changes(rng: Random, value: Any) -> list[Callable[[], object]]:
    """What changes such an object."""
    steps: list[Callable[[], object]] = [functools.partial(setattr, value, "a", 5.0)]
    if value.inner is not None:
        steps.append(functools.partial(setattr, value.inner, "a", 7.0))
    if rng.random() < 0.5:
        steps.append(functools.partial(setattr, value, "a", rng.choice([6, 2.5, True])))
    return steps


def _all_of(value: Any) -> float:
    return float(value.a) + (float(value.inner.a) if value.inner is not None else 0.0)


#: Ways to read all of an object without naming its attributes one by one.
WHOLE: dict[str, Callable[[Any], float]] = {
    "deepcopy": lambda value: _all_of(copy.deepcopy(value)),
    "copy": lambda value: _all_of(copy.copy(value)),
    "pickle": lambda value: _all_of(pickle.loads(pickle.dumps(value))),
    "reduce": lambda value: float(len(str(value.__reduce_ex__(2)[2]))),
    "attrgetter": lambda value: operator.attrgetter("a")(value),
    "attrgetter map": lambda value: sum(map(operator.attrgetter("a"), [value, value])),
    "format": lambda value: float(f"{value.a}"),
    "str.format": lambda value: float("{0.a}".format(value)),  # noqa: UP030, UP032
    "getattr map": lambda value: sum(map(functools.partial(getattr, value), ["a", "a"])),
    "methodcaller": lambda value: operator.methodcaller("__getattribute__", "a")(value),
    "object getattribute": lambda value: object.__getattribute__(value, "a"),
    "sorted": lambda value: sorted([value, new_box(a=4.0)], key=lambda one: one.a)[0].a,
    "max": lambda value: max([value, new_box(a=4.0)], key=operator.attrgetter("a")).a,
    "nlargest": lambda value: heapq.nlargest(1, [value.a, 4.0])[0],
    "reduce of": lambda value: functools.reduce(lambda one, two: one + two.a, [value, value], 0.0),
    "accumulate": lambda value: [*itertools.accumulate([value.a, value.a])][-1],
    "starmap": lambda value: next(itertools.starmap(getattr, [(value, "a")])),
    "any": lambda value: 2.0 if any(one.a > 3 for one in [value]) else 3.0,
    "json": lambda value: float(json.loads(json.dumps({"a": value.a}))["a"]),
    "match": lambda value: _matched(value),
}


def _matched(value: Any) -> float:
    match value:
        case object(a=2.0):
            return 2.0
        case object(a=a):
            return float(a) + 1
    return 0.0


@family
def whole_of_an_object(rng: Random) -> Program:
    value, way = thing(rng), rng.choice([*WHOLE])
    at = place(rng, value, lambda value, x: x * WHOLE[way](value))
    return at.program(*changes(rng, value), about=f"{way} of {type(value).__name__}")


#: Ways to read a dict, list or other container through C.
HELD: dict[str, Callable[[Any], float]] = {
    "itemgetter": lambda held: operator.itemgetter("a")(held),
    "sum": lambda held: sum(held.values()),
    "map get": lambda held: sum(map(held.get, ["a"])),
    "zip": lambda held: next(zip(held, held.values(), strict=True))[1],
    "deepcopy": lambda held: copy.deepcopy(held)["a"],
    "ChainMap": lambda held: collections.ChainMap({}, held)["a"],
    "format_map": lambda held: float("{a}".format_map(held)),
    "percent": lambda held: float("%(a)s" % held),  # noqa: UP031
    "merge": lambda held: ({"b": 1.0} | held)["a"],
    "keywords": lambda held: dict(**held)["a"],
    "json": lambda held: float(json.loads(json.dumps(held))["a"]),
    "proxy": lambda held: types.MappingProxyType(held)["a"],
    "compare": lambda held: 2.0 if held == {"a": 2.0} else 3.0,
    "contains": lambda held: 2.0 if 2.0 in held.values() else 3.0,
    "reversed": lambda held: held[next(reversed(held))],
    "len": lambda held: float(len(held)),
    "bool": lambda held: 2.0 if held else 3.0,
    "pop of a copy": lambda held: dict(held).popitem()[1],
    "match": lambda held: _held_matched(held),
}


def _held_matched(held: Any) -> float:
    match held:
        case {"a": 2.0}:
            return 2.0
        case {"a": a}:
            return float(a) + 1
    return 0.0


@family
def content_of_a_dict(rng: Random) -> Program:
    kinds: list[Any] = [dict, collections.OrderedDict, functools.partial(collections.defaultdict, float)]
    kind = rng.choice(kinds)
    held, way = kind({"a": 2.0}), rng.choice([*HELD])
    at = place(rng, held, lambda held, x: x * HELD[way](held))
    steps = [lambda: held.update(a=5.0)]
    if rng.random() < 0.5 and way not in ("zip", "reversed", "pop of a copy"):
        steps.append(lambda: held.update(b=4.0))
    return at.program(*steps, about=f"{way} of {type(held).__name__}")


@family
def iteration(rng: Random) -> Program:
    class Rows:
        def __init__(self) -> None:
            self.rows = [1.0, 2.0]

        def __iter__(self) -> Iterator[float]:
            return iter(self.rows)

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> float:
            return self.rows[index]

        def __contains__(self, one: float) -> bool:
            return one in self.rows

        def __reversed__(self) -> Iterator[float]:
            return reversed(self.rows)

    class Old:
        def __init__(self) -> None:
            self.rows = [1.0, 2.0]

        def __getitem__(self, index: int) -> float:
            return self.rows[index]

    ways: dict[str, Callable[[Any], float]] = {
        "for": lambda rows: float(sum([row * 2 for row in rows])),
        "sum": lambda rows: float(sum(rows)),
        "list": lambda rows: float(len([*rows])),
        "unpack": lambda rows: float((lambda first, *others: first + len(others))(*rows)),
        "zip": lambda rows: float(sum(a * b for a, b in zip(rows, rows, strict=True))),
        "enumerate": lambda rows: float(sum(i * row for i, row in enumerate(rows))),
        "contains": lambda rows: 2.0 if 4.0 in rows else 3.0,
        "generator": lambda rows: float(sum(row for row in rows if row > 1)),
        "next": lambda rows: float(next(iter(rows))),
        "map": lambda rows: float(sum(map(abs, rows))),
        "max": lambda rows: float(max(rows)),
        "yield from": lambda rows: float(sum(_yielded(rows))),
    }
    rows: Any = rng.choice([Rows, Old])()
    way = rng.choice([*ways])
    at = place(rng, rows, lambda rows, x: x * ways[way](rows))
    steps = [
        lambda: rows.rows.append(4.0),
        lambda: rows.rows.__setitem__(0, 9.0),
        lambda: setattr(rows, "rows", [5.0, 4.0]),
    ]
    return at.program(*rng.sample(steps, 2), about=way)


def _yielded(rows: Any) -> Iterator[float]:
    yield 1.0
    yield from rows


@family
def generators(rng: Random) -> Program:
    settings = new_box(a=2.0, rows=[1.0, 2.0])

    def numbers() -> Iterator[float]:
        for row in settings.rows:
            yield row * settings.a

    class Source:
        def __iter__(self) -> Iterator[float]:
            yield settings.a
            yield from settings.rows

    def sent() -> float:
        def doubled() -> Any:
            received = yield 0.0
            while True:
                received = yield received * settings.a

        running = doubled()
        next(running)
        return float(running.send(3.0))

    ways: dict[str, Callable[[], float]] = {
        "function": lambda: sum(numbers()),
        "list": lambda: next(iter(numbers())),
        "class": lambda: sum(Source()),
        "expression": lambda: sum(row * settings.a for row in settings.rows),
        "nested": lambda: sum(a for row in numbers() for a in (row, settings.a)),
        "islice": lambda: sum(itertools.islice(numbers(), 1)),
        "send": sent,
        "chain": lambda: sum(itertools.chain(numbers(), Source())),
        "lazy argument": lambda: max(row for row in numbers()),
    }
    way = rng.choice([*ways])
    read = ways[way]
    at = place(rng, read, lambda read, x: x * read(), arguments=False)
    return at.program(lambda: setattr(settings, "a", 5.0), lambda: settings.rows.append(3.0), about=way)


@family
def weak_references(rng: Random) -> Program:
    held = {"value": new_box(a=2.0), "other": new_box(a=4.0)}
    reference = weakref.ref(held["value"])
    table: Any = weakref.WeakValueDictionary(value=held["value"])
    keys: Any = weakref.WeakKeyDictionary({held["value"]: 2.0})
    members: Any = weakref.WeakSet([held["value"]])
    proxy = weakref.proxy(held["value"])

    def by_reference(_: Any) -> float:
        target = reference()
        return 9.0 if target is None else float(target.a)

    ways: dict[str, Callable[[Any], float]] = {
        "ref": by_reference,
        "values": lambda _: float(sum(one.a for one in table.values())),
        "get": lambda _: 9.0 if table.get("value") is None else float(table["value"].a),
        "keys": lambda _: float(len(keys)) + sum(keys.values()),
        "set": lambda _: float(len(members)),
        "contains": lambda _: 2.0 if "value" in table else 3.0,
    }
    if rng.random() < 0.3:
        at = place(rng, proxy, lambda proxy, x: x * proxy.a, arguments=False)
        return at.program(lambda: setattr(held["value"], "a", 5.0), about="proxy")
    way = rng.choice([*ways])
    read = ways[way]
    at = place(rng, read, lambda read, x: x * read(None), arguments=False)
    return at.program(lambda: setattr(held["value"], "a", 5.0), held.clear, about=way)


@family
def context_variables(rng: Random) -> Program:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable", default=2.0)
    box = new_box(a=3.0)

    def inside() -> float:
        token = variable.set(4.0)
        try:
            return float(variable.get())
        finally:
            variable.reset(token)

    def run() -> float:
        return float(contextvars.copy_context().run(variable.get))

    def of_object() -> float:
        held = variable.get()
        return float(held.a if hasattr(held, "a") else held)

    ways: dict[str, Callable[[], float]] = {
        "get": lambda: float(variable.get() if not hasattr(variable.get(), "a") else 8.0),
        "default": lambda: float(getattr(variable.get(1.0), "a", 6.0)),
        "set inside": lambda: inside() + of_object(),
        "copy_context": lambda: run() if not hasattr(variable.get(), "a") else 7.0,
        "in context": lambda: 2.0 if variable in contextvars.copy_context() else 3.0,
        "object": of_object,
    }
    way = rng.choice([*ways])
    read = ways[way]
    at = place(rng, read, lambda read, x: x * read(), arguments=False)
    steps: list[Callable[[], object]] = [
        lambda: variable.set(5.0),
        lambda: variable.set(box),
        lambda: setattr(box, "a", 6.0),
    ]
    return at.program(*steps[: rng.randint(1, 3)], about=way)


@family
def tensors_through_c(rng: Random) -> Program:
    box = new_box(scale=torch.tensor([2.0, 3.0, 4.0]))
    ways: dict[str, Callable[[Any], Tensor]] = {
        "attrgetter": lambda box: operator.attrgetter("scale")(box),
        "vars": lambda box: vars(box)["scale"],
        "copy": lambda box: copy.copy(box).scale,
        "reduce": lambda box: functools.reduce(operator.mul, [box.scale, box.scale]),
        "sum": lambda box: sum([box.scale, box.scale], torch.zeros(())),
        "map": lambda box: next(map(operator.neg, [box.scale])),
        "max": lambda box: max([box.scale], key=len),
        "deepcopy": lambda box: copy.deepcopy(box.scale),
    }
    way = rng.choice([*ways])
    at = place(rng, box, lambda box, x: x * ways[way](box))
    steps = [
        lambda: box.scale.mul_(2),
        lambda: setattr(box, "scale", torch.ones(3)),
        lambda: setattr(box, "scale", torch.ones(1)),
    ]
    return at.program(*rng.sample(steps, 2), about=way)


@family
def late_globals(rng: Random) -> Program:
    bodies = {
        "global": "def read(x):\n    return x * value\n",
        "helper": "def read(x):\n    return x * helper()\ndef helper():\n    return value\n",
        "lambda": "helper = lambda: value\ndef read(x):\n    return x * helper()\n",
        "default": "def read(x):\n    def inner(k=value):\n        return k\n    return x * inner()\n",
        "comprehension": "def read(x):\n    return x * sum([value for _ in range(2)])\n",
        "class body": "def read(x):\n    class Inner:\n        k = value\n    return x * Inner.k\n",
        "try": "def read(x):\n    try:\n        return x * missing\n    except NameError:\n        return x * value\n",
        "builtin": "def read(x):\n    return x * abs(value)\n",
        "map": "def read(x):\n    return x * sum(map(helper, [1, 2]))\ndef helper(k):\n    return k * value\n",
        "decorated": (
            "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def inner(*a):\n        return f(*a) * 2\n"
            "    return inner\n@twice\ndef read(x):\n    return x * value\n"
        ),
    }
    way = rng.choice([*bodies])
    world = source(bodies[way], value=2.0)

    def set_missing() -> None:
        world.missing = 8.0  # type: ignore[attr-defined]

    def hide() -> None:
        vars(world)["abs"] = lambda value: value + 10

    def replace() -> None:
        vars(world)["helper"] = lambda *_: 6.0

    steps: list[Callable[[], object]] = [functools.partial(setattr, world, "value", 5.0), set_missing, hide, replace]
    steps = [steps[0], *rng.sample(steps[1:], 2)]
    x = torch.tensor([1.0, 2.0])
    return Program(world.read, lambda call: call(x), tuple(steps), way)
