"""Results that share parts, hold themselves or hold what there was before: each call gives what eager gives."""

from __future__ import annotations

import dataclasses
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import switchgear as sg
from tests.falling_back import falls_back
from tests.in_turn import in_turn

BEFORE: dict[str, Any] = {"list": [1, 2], "dict": {"a": 1}}


@dataclasses.dataclass
class Batch:
    """A dataclass."""

    first: Any
    second: Any = None


class Plain:
    """An object with attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def kept(self) -> Any:
        return vars(self)


def parts(value: Any) -> list[Any]:
    """What an object consists of, with the names."""
    if isinstance(value, dict):
        return [*value.items()]
    if isinstance(value, (tuple, list, deque)):
        return [*enumerate(value)]
    if isinstance(value, types.FunctionType):
        return [(index, cell.cell_contents) for index, cell in enumerate(value.__closure__ or ())]
    return [*vars(value).items()] if isinstance(value, (Batch, Plain, types.SimpleNamespace)) else []


def shape(value: Any) -> list[tuple[Any, ...]]:
    """Every part of a result once, numbered: its class, its value if it has none, and its parts by their numbers."""
    pending, numbers, told = [value], dict[int, int](), list[tuple[Any, ...]]()
    for part in pending:
        if id(part) not in numbers:
            numbers[id(part)] = len(numbers)
            pending += [item for _, item in parts(part)]
    for part in {id(one): one for one in pending}.values():
        leaf = part.tolist() if isinstance(part, Tensor) else None if parts(part) else repr(part).partition(" at ")[0]
        is_before = next((name for name, one in BEFORE.items() if one is part), None)
        told.append((type(part), leaf, is_before, [(key, numbers[id(item)]) for key, item in parts(part)]))
    return told


def twice(part: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def function(x: Tensor) -> Any:
        one = part(x * 2)
        return one, [one]

    return function


def holds_itself(x: Tensor) -> Any:
    result: list[Any] = [x * 2]
    result.append(result)
    return result


def holds_itself_by_a_key(x: Tensor) -> Any:
    result: dict[str, Any] = {"a": x * 2}
    result["b"] = [result]
    return result


def holds_itself_by_an_attribute(x: Tensor) -> Any:
    result = Plain(a=x * 2)
    result.b = {"c": result}  # type: ignore[attr-defined]
    return result


def more_than_its_fields(x: Tensor) -> Any:
    result = Batch(x * 2)
    result.third = x + 1  # type: ignore[attr-defined]
    return result


def a_function_that_calls_itself(x: Tensor) -> Any:
    def scaled(times: int) -> Any:
        return scaled(times - 1) * 2 if times else x

    return scaled


def a_tuple_that_holds_itself(x: Tensor) -> Any:
    result: tuple[Any, ...] = (x * 2, [])
    result[1].append(result)
    return result


class Pair(tuple[Any, ...]):
    """A tuple that two values make."""

    __slots__ = ()

    def __new__(cls, first: Any, second: Any) -> Pair:
        """Join them."""
        return super().__new__(cls, (first, second))


class Doubling(list[Any]):
    """Holds twice what is added at once."""

    def extend(self, items: Any) -> None:
        """Add twice."""
        super().extend([*items] * 2)


RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "a list twice": twice(lambda y: [y]),
    "a tuple twice": twice(lambda y: (y,)),
    "a dict twice": twice(lambda y: {"a": y}),
    "an ordered dict twice": twice(lambda y: OrderedDict(a=y)),
    "an object twice": twice(lambda y: Plain(a=y)),
    "a namespace twice": twice(lambda y: types.SimpleNamespace(a=y)),
    "a dataclass twice": twice(lambda y: Batch(y)),
    "a function twice": twice(lambda y: lambda: y),
    "a tensor twice": twice(lambda y: y),
    "a set twice": twice(lambda y: {1, 2}),
    "one list in two": lambda x: (lambda one: ({"a": one}, Plain(b=one)))([x * 2]),
    "two equal lists": lambda x: (lambda y: ([y], [y]))(x * 2),
    "a list that holds itself": holds_itself,
    "a dict that holds itself": holds_itself_by_a_key,
    "an object that holds itself": holds_itself_by_an_attribute,
    "more than the fields": more_than_its_fields,
    "a list of before": lambda x: (x * 2, BEFORE["list"]),
    "a dict of before twice": lambda x: [BEFORE["dict"], x * 2, Batch(BEFORE["dict"])],
    "an empty list twice": twice(lambda y: []),
    "a list of a class": lambda x: Doubling([x * 2]),
    "a dict of a class": lambda x: Counter(a=x.shape[0]),
}
NOT_REBUILT: dict[str, Callable[[Tensor], Any]] = {
    "a dict with a default twice": twice(lambda y: defaultdict(list, a=y)),
    "a deque twice": twice(lambda y: deque([y], maxlen=3)),
    "a method": lambda x: Plain(a=x * 2, b=Plain(a=x).kept),
    "a tuple of a class": lambda x: Pair(x * 2, 1),
}


@in_turn(name=RESULTS)
def test_results_share_what_eagers_share(name: str) -> None:
    jitted, x = sg.jit(RESULTS[name], executors=["torch"], strict=True), torch.ones(2)
    expected = shape(RESULTS[name](x))
    for _ in range(2):
        assert shape(jitted(x)) == expected
    assert jitted(x) is not jitted(x)
    assert sg.cache_info(jitted).misses == 1


@pytest.mark.parametrize("function", [a_function_that_calls_itself, a_tuple_that_holds_itself])
def test_a_result_that_is_built_of_itself_falls_back(function: Callable[[Tensor], Any]) -> None:
    jitted = sg.jit(function, executors=["torch"])
    with falls_back("that holds itself"):
        results = [jitted(torch.full((2,), number)) for number in (1.0, 2.0)]
    for result, number in zip(results, (1.0, 2.0), strict=True):
        value = result(3) if callable(result) else result[1][0][0]
        assert torch.equal(value, torch.full((2,), 8 * number if callable(result) else 2 * number))


@pytest.mark.parametrize("name", NOT_REBUILT)
def test_a_result_that_no_call_rebuilds_falls_back(name: str) -> None:
    jitted = sg.jit(NOT_REBUILT[name], executors=["torch"])
    calls = [torch.ones(size) for size in (2, 3, 4, 5)]
    with falls_back("in what it returns, which a later call could not rebuild"):
        results = [jitted(x) for x in calls]
    assert [shape(result) for result in results] == [shape(NOT_REBUILT[name](x)) for x in calls]
