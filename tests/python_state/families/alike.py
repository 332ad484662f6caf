"""Values that compare equal, or nearly so, and are not alike: by type, by sign, by what else a container has."""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tests.python_state.families.program import Program, family, place


class _Text(str):
    __slots__ = ()


class _Number(int):
    __slots__ = ()


class _Letter(enum.StrEnum):
    A = "a"


class _Count(enum.IntEnum):
    ONE = 1


#: Values of which each is equal to the others of its group.
ALIKE: list[list[Any]] = [
    [1, 1.0, True, _Number(1), _Count.ONE, 1 + 0j],
    [0, 0.0, -0.0, False],
    ["a", _Letter.A, _Text("a")],
    [range(0), range(3, 3), range(5, 0)],
    [range(0, 3, 5), range(1), range(0, 1, 2)],
    [(1, 2), (1.0, 2), (True, 2)],
    [frozenset({1}), frozenset({1.0}), frozenset({True})],
    [slice(0, 1), slice(0, True), slice(0, 1.0)],
    [b"a", b"A"],
]


def _shown(value: Any, x: Tensor) -> Any:
    """A number that tells values apart: their `repr` and type."""
    number = sum(map(ord, repr(value) + type(value).__name__)) % 97
    return x * (number + 1)


def _number_of(text: str) -> int:
    return sum(map(ord, text)) % 97 + 1


#: What a function makes of a container, and of one item in it.
READS: dict[str, Callable[[Any, Tensor], Any]] = {
    "repr": lambda held, x: x * _number_of(repr(held)),
    "first type": lambda held, x: x * _number_of(type(next(iter(held))).__name__),
    "types": lambda held, x: x * _number_of("".join([type(one).__name__ for one in held])),
    "items": lambda held, x: x * _number_of(" ".join(f"{one!r}" for one in held)),
}

MADE: dict[str, Callable[[Any, Any], Any]] = {
    "key": lambda one, other: {one: 1, other: 2},
    "value": lambda one, other: {"a": one, "b": other},
    "list": lambda one, other: [one, other],
    "tuple": lambda one, other: (one, other),
    "set": lambda one, other: {one},
    "frozenset": lambda one, other: frozenset({one}),
    "nested": lambda one, other: {"a": [(one, {"k": other})]},
    "tuple key": lambda one, other: {(one, 5): other},
    "counter": lambda one, other: collections.Counter([one, one, other]),
    "deque": lambda one, other: collections.deque([one, other], maxlen=3),
    "ordered": lambda one, other: collections.OrderedDict([(one, other)]),
    "default": lambda one, other: collections.defaultdict(int, {one: other}),
    "long list": lambda one, other: [*range(50), one, other],
    "long dict": lambda one, other: {"n": one, **{str(n): n for n in range(20)}},
    "namespace": lambda one, other: [types.SimpleNamespace(a=one)],
}


@family
def alike_values(rng: Random) -> Program:
    values = rng.choice(ALIKE)
    chosen = [rng.choice(values) for _ in range(4)]
    at = place(rng, chosen[0], _shown)
    return at.program(*[functools.partial(at.put, value) for value in chosen[1:]], about=repr(chosen))


@family
def alike_in_containers(rng: Random) -> Program:
    values = [value for value in rng.choice(ALIKE) if not isinstance(value, slice)] or [1, True]
    made, read = rng.choice([*MADE]), rng.choice([*READS])
    pairs = [(rng.choice(values), rng.choice(values)) for _ in range(4)]
    held = [MADE[made](*pair) for pair in pairs]
    at = place(rng, held[0], READS[read], arguments=made != "namespace")
    about = f"{made}, {read}, {pairs}"
    return at.program(*[functools.partial(at.put, one) for one in held[1:]], about=about)


@family
def alike_put_into_a_container(rng: Random) -> Program:
    """The container stays, what is in it is replaced."""
    values = [value for value in rng.choice(ALIKE) if not isinstance(value, slice)] or [1, True]
    read, kind = rng.choice([*READS]), rng.choice(["list", "dict", "key", "deque", "set", "long", "long dict"])
    first = rng.choice(values)
    made: dict[str, Callable[[], Any]] = {
        "list": lambda: [0, first],
        "dict": lambda: {"a": first},
        "key": lambda: {first: 1},
        "deque": lambda: collections.deque([first]),
        "set": lambda: {first},
        "long": lambda: [*range(rng.choice([20, 100, 300])), first],
        "long dict": lambda: {first: 3, **{str(n): n for n in range(30)}},
    }
    held = made[kind]()

    def put(value: Any) -> None:
        if isinstance(held, (list, collections.deque)):
            held[-1] = value
        elif isinstance(held, set):
            held.clear()
            held.add(value)
        elif kind == "dict":
            held["a"] = value
        else:
            left = [(key, item) for key, item in held.items() if key != value]
            held.clear()
            held.update([(value, 1), *left])

    chosen = [rng.choice(values) for _ in range(3)]
    at = place(rng, held, READS[read])
    about = f"{kind}, {read}, {[first, *chosen]}"
    return at.program(*[functools.partial(put, value) for value in chosen], about=about)


@family
def deques_by_their_lengths(rng: Random) -> Program:
    lengths: list[int | None] = [None, 1, 2, 3, 5]
    held = [collections.deque([1, 2][: rng.choice([1, 1, 2])], maxlen=rng.choice(lengths)) for _ in range(3)]
    uses: dict[str, Callable[[Any, Tensor], Any]] = {
        "maxlen": lambda held, x: x * (held.maxlen or 9),
        "full": lambda held, x: x * (2 if len(held) == held.maxlen else 3),
        "appended": lambda held, x: x * len([held.append(7), *held][1:]),
        "copied": lambda held, x: x * (collections.deque(held, held.maxlen).maxlen or 4),
    }
    use = rng.choice([*uses])
    at = place(rng, held[0], uses[use])
    changes = [functools.partial(at.put, one) for one in held[1:]]
    return at.program(*changes, about=f"{use}, {held}")


@family
def classes_whose_methods_raise(rng: Random) -> Program:
    """What a guard must not call: methods of containers and values of the user's."""

    def refuses(self: Any, *args: Any) -> Any:
        raise NotImplementedError

    base = rng.choice([tuple, list, dict, str, int, float, frozenset, object])
    content: Any = {dict: {"a": 2}, str: "ab", int: 2, float: 2.5, object: None}.get(base, (2, 3))
    methods = {"__len__", "__eq__", "__bool__", "__contains__", "__iter__"}
    if base in (tuple, list):
        methods.add("__hash__")
    names = rng.sample(sorted(methods), rng.randrange(1, 4))
    kind: Any = type("Kind", (base,), dict.fromkeys(names, refuses) | {"scale": 3.0})
    values = [kind() if base is object else kind(content) for _ in range(2)]
    uses: dict[str, Callable[[Any, Tensor], Any]] = {
        "attribute": lambda value, x: x * value.scale,
        "own attribute": lambda value, x: x * getattr(value, "own", 1.0),
    }
    if base in (tuple, list):
        uses["item"] = lambda value, x: x * value[0]
    use, outer = rng.choice([*uses]), rng.choice(["itself", "list", "dict"])
    made: dict[str, Callable[[Any], Any]] = {
        "itself": lambda value: value,
        "list": lambda value: [value],
        "dict": lambda value: {"a": value},
    }
    inner: dict[str, Callable[[Any], Any]] = {
        "itself": lambda held: held,
        "list": lambda held: held[0],
        "dict": lambda held: held["a"],
    }
    at = place(rng, made[outer](values[0]), lambda held, x: uses[use](inner[outer](held), x))
    changes: list[Callable[[], object]] = [
        lambda: at.put(made[outer](values[1])),
        lambda: setattr(kind, "scale", 4.0),
        lambda: setattr(values[1], "own", 2.0),
    ]
    return at.program(*changes, about=f"{base.__name__} {names}, {use}, {outer}")


@family
def elements_of_long_containers(rng: Random) -> Program:
    """One element of many is replaced, or they come in another order, or there are more."""
    count = rng.choice([5, 20, 70, 500])
    held: Any = [float(n) for n in range(count)]
    where = rng.randrange(count)
    nested = rng.random() < 0.3
    if nested:
        held[where] = [1.5]
    uses: dict[str, Callable[[Any, Tensor], Any]] = {
        "item": lambda held, x: x * (held[where][0] if nested else held[where]),
        "len": lambda held, x: x * len(held),
        "sum": lambda held, x: x * sum(one if isinstance(one, float) else one[0] for one in held),
        "loop": lambda held, x: sum((x * one for one in held if one == 2.0), x),
        "in": lambda held, x: x * (2 if 77.5 in held else 3),
    }
    use = rng.choice([*uses])

    def put(value: Any) -> None:
        if nested:
            held[where][0] = value
        else:
            held[where] = value

    ways: list[Callable[[], object]] = [
        lambda: put(77.5),
        lambda: put(2),
        lambda: held.append(2.0),
        lambda: held.__setitem__(slice(None), held[:]),
        lambda: held.__setitem__((where + 1) % count, 2.0),
    ]
    changes = rng.sample(ways, rng.randrange(1, 4))
    at = place(rng, held, uses[use])
    return at.program(*changes, about=f"{count}, {use}, nested={nested}")


@family
def parameters_by_number(rng: Random) -> Program:
    """Many parameters, of which one is used, or all are counted."""
    count = rng.choice([3, 40, 150])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList([nn.Parameter(torch.full((3,), float(n))) for n in range(count)])

        def forward(self, x: Tensor) -> Any:
            if which == "all":
                return x * len([*self.parameters()])
            return x * self.scales[where]

    which, where, net = rng.choice(["one", "all"]), rng.randrange(count), Net()
    at = place(rng, net, lambda net, x: net(x), arguments=False)
    ways: list[Callable[[], object]] = [
        lambda: net.scales[where].data.fill_(7.0),
        lambda: net.scales.__setitem__(where, nn.Parameter(torch.full((3,), 9.0))),
        lambda: net.scales.append(nn.Parameter(torch.ones(3))),
        lambda: net.scales.__setitem__(0, nn.Parameter(torch.full((3,), 5.0))),
        lambda: net.scales[where].requires_grad_(False),
    ]
    return at.program(*rng.sample(ways, 2), about=f"{count}, {which}")
