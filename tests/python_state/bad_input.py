"""Worlds that are hostile to whoever looks into them: raising properties, cycles, generators, locks, C objects."""

from __future__ import annotations

import collections
import re
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from tests.python_state.scenario import Call, Scenario, Steps, attempt, case, changed, points, put, repeated, step


class Plain:
    """Holds what a case gives it."""

    def __init__(self, **values: Any) -> None:
        put(self, **values)


@case()
def property_that_raises() -> Scenario:
    class Guarded(Plain):
        @property
        def device(self) -> Any:
            raise RuntimeError("not initialised")

    holder = Guarded(scale=1.0)
    return changed(lambda x: x * holder.scale, lambda: put(holder, scale=2.0))  # type: ignore[attr-defined]


@case()
def property_that_is_read_and_raises() -> Scenario:
    class Guarded(Plain):
        @property
        def factor(self) -> float:
            if self.scale < 0:  # type: ignore[attr-defined]
                raise ValueError("negative scale")
            return float(self.scale)  # type: ignore[attr-defined]

    holder = Guarded(scale=1.0)

    def drive(call: Call) -> Steps:
        for scale in (1.0, 1.0, -1.0, 2.0):
            put(holder, scale=scale)
            yield attempt(call, points())

    return Scenario(lambda x: x * holder.factor, drive)


@case()
def own_getattribute() -> Scenario:
    class Traced(Plain):
        def __getattribute__(self, name: str) -> Any:
            value = object.__getattribute__(self, name)
            return value * 2 if name == "scale" else value

    holder = Traced(scale=1.0)
    return changed(lambda x: x * holder.scale, lambda: put(holder, scale=3.0))


@case()
def own_setattr() -> Scenario:
    class Clamped(Plain):
        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, min(value, 3))

    holder = Clamped(calls=0)

    def forward(x: Tensor) -> Tensor:
        holder.calls += 1  # type: ignore[attr-defined]
        return x * holder.calls  # type: ignore[attr-defined, no-any-return]

    return repeated(forward, lambda: holder.calls, times=7)  # type: ignore[attr-defined]


@case()
def equality_that_raises() -> Scenario:
    class Fussy:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("do not compare")

        __hash__ = None  # type: ignore[assignment]

    holder = Plain(config=Fussy(2.0))
    return changed(lambda x: x * holder.config.scale, lambda: put(holder, config=Fussy(3.0)))  # type: ignore[attr-defined]


@case()
def truth_that_raises() -> Scenario:
    class Fussy:
        scale = 2.0

        def __bool__(self) -> bool:
            raise RuntimeError("do not ask")

    config = Fussy()
    return changed(lambda x: x * config.scale, lambda: put(config, scale=3.0))


@case()
def cycle_of_objects() -> Scenario:
    parent, child = Plain(scale=1.0), Plain()
    put(parent, child=child)
    put(child, parent=parent)
    return changed(lambda x: x * child.parent.child.parent.scale, lambda: put(parent, scale=2.0))  # type: ignore[attr-defined]


@case()
def list_that_holds_itself() -> Scenario:
    ring: list[Any] = [1.0]
    ring.append(ring)
    return changed(lambda x: x * ring[1][1][0], lambda: ring.__setitem__(0, 2.0))


@case()
def cyclic_argument() -> Scenario:
    def drive(call: Call) -> Steps:
        for scale in (1.0, 1.0, 2.0):
            node = Plain(scale=scale)
            put(node, itself=node)
            yield step(call, points(), node)

    return Scenario(lambda x, node: x * node.itself.scale, drive)


@case()
def locals_and_globals() -> Scenario:
    def forward(x: Tensor) -> Any:
        scale = 2
        everything = locals() | {"name": __name__}
        return {**everything, "y": x * scale}

    return changed(forward, lambda: None)


@case(falls_back="globals() has more than any guard can tell")
def names_found_in_globals() -> Scenario:
    def forward(x: Tensor) -> Any:
        names = locals() | globals()
        return x * names["FACTOR_OF_THE_CASE"]

    def drive(call: Call) -> Steps:
        for factor in (1.0, 1.0, 2.0):
            globals()["FACTOR_OF_THE_CASE"] = factor
            yield step(call, points())

    return Scenario(forward, drive)


def _numbers() -> Iterator[float]:
    yield from (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


@case(falls_back="a generator's position cannot be put back")
def generator_closed_over() -> Scenario:
    numbers = _numbers()
    return repeated(lambda x: x * next(numbers), lambda: None)


@case()
def generator_made_inside() -> Scenario:
    return repeated(lambda x: sum(x * number for number in _numbers()), lambda: None)


@case(falls_back="results that are lazy")
def generator_returned() -> Scenario:
    def drive(call: Call) -> Steps:
        for seed in range(3):
            yield list(call(points(seed=seed)))

    return Scenario(lambda x: (x * number for number in (1, 2)), drive, settled=False)


@case()
def lock_that_another_method_takes() -> Scenario:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()
            self.scale = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

        def update(self, scale: float) -> None:
            with self.lock:
                self.scale = scale

    module = Locked()
    return changed(module, lambda: module.update(2.0))


@case()
def objects_of_c_beside() -> Scenario:
    holder = Plain(pattern=re.compile("a+"), lock=threading.RLock(), scale=1.0)

    def forward(x: Tensor) -> Tensor:
        return x * holder.scale if holder.pattern.match("aa") else x  # type: ignore[attr-defined]

    return changed(forward, lambda: put(holder, scale=2.0), lambda: put(holder, pattern=re.compile("b+")))


@case()
def weak_reference() -> Scenario:
    owner = Plain(scale=1.0)
    reference = weakref.ref(owner)
    return changed(lambda x: x * reference().scale, lambda: put(owner, scale=2.0))  # type: ignore[union-attr]


@case(falls_back="thread-local state is C's")
def thread_local_written() -> Scenario:
    local = threading.local()
    put(local, calls=0)

    def forward(x: Tensor) -> Tensor:
        local.calls += 1
        return x * local.calls  # type: ignore[no-any-return]

    return repeated(forward, lambda: local.calls)


@case(falls_back="a metaclass makes attributes up")
def metaclass_with_attributes() -> Scenario:
    class Meta(type):
        def __getattr__(cls, name: str) -> float:
            if name != "scale":
                raise AttributeError(name)
            return 2.0

    class Config(metaclass=Meta):
        pass

    return changed(lambda x: x * Config.scale, lambda: put(Config, scale=3.0))


@case()
def named_tuple_replaced() -> Scenario:
    point = collections.namedtuple("point", "left right")
    holder = Plain(place=point(1.0, 2.0))

    def forward(x: Tensor) -> Tensor:
        return x * holder.place.left + holder.place.right  # type: ignore[attr-defined, no-any-return]

    return changed(forward, lambda: put(holder, place=holder.place._replace(right=3.0)))  # type: ignore[attr-defined]


@case()
def error_from_inside() -> Scenario:
    limits = {"rows": 4}

    def forward(x: Tensor) -> Tensor:
        if x.shape[0] > limits["rows"]:
            raise IndexError(f"{x.shape[0]} rows, at most {limits['rows']}")
        return x * 2

    def drive(call: Call) -> Steps:
        for rows, most in ((3, 4), (3, 4), (3, 2), (3, 4)):
            limits["rows"] = most
            yield attempt(call, points(rows))

    return Scenario(forward, drive)


@case(entries=1)
def many_objects_unread() -> Scenario:
    holder = Plain(scale=2.0, rest=[Plain(number=number) for number in range(2000)])

    def drive(call: Call) -> Steps:
        for number in range(4):
            yield step(call, points())
            put(holder.rest[number], number=-1)  # type: ignore[attr-defined]

    return Scenario(lambda x: x * holder.scale, drive)  # type: ignore[attr-defined]


@case(falls_back="gives an object another class")
def class_of_an_object_that_is_another_afterwards() -> Scenario:
    class Doubling(Plain):
        factor = 2.0

    class Tripling(Plain):
        factor = 3.0

    holder: Any = Doubling()

    def forward(x: Tensor) -> Any:
        factor = holder.factor
        holder.__class__ = Tripling
        return x * factor

    return changed(forward)
