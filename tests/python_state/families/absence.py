"""What is not there when a call is captured, and is later; and what is there and goes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from random import Random
from typing import Any

from torch import Tensor

from tests.python_state.families.program import Program, family, new_box, place


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
def object_gains_an_attribute(rng: Random) -> Program:
    value = new_box(other=1)
    asked = rng.choice([*ASKED])
    at = place(rng, value, ASKED[asked])
    return at.program(*_gains(rng, value), about=asked)
