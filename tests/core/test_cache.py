"""The cache of a function: what a message calls an argument, and calls by the sizes that they had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from switchgear_core.record.structure import flatten
from switchgear_runtime.cache import _kind, _parameter, sizes_of
from tests.in_turn import in_turn


def named(x: Any, y: Any = None, *rest: Any, **more: Any) -> None:
    """Parameters of each kind."""


@in_turn(
    function__args__kwargs__names=[
        (named, (1, 2), {}, ["argument x", "argument y"]),
        (named, (1, [2, 3]), {}, ["argument x", "argument y", "argument y"]),
        (named, (1,), {"y": 2}, ["argument x", "argument y"]),
        (named, (1,), {"other": {"a": 2}}, ["argument x", "argument other"]),
        (lambda *rest: None, (1, 2, 3), {}, ["argument rest"] * 3),
        (dict.get, ({"a": 1},), {}, ["argument self"]),
        (type, (1,), {}, ["argument 0"]),  # has no signature
    ]
)
def test_arguments_are_called_by_their_parameters(
    function: Callable[..., object], args: Any, kwargs: Any, names: list[str]
) -> None:
    leaves, spec = flatten((args, kwargs))
    assert [_parameter(function, spec, place) for place in range(len(leaves))] == names


def test_kinds_of_calls_leave_out_sizes_and_values() -> None:
    def kind(*leaves: Any, modes: tuple[Any, ...] = ()) -> Any:
        return _kind((flatten(leaves)[1], leaves, modes, ()))

    assert kind(((2, 3), (3, 1), torch.float32)) == kind(((4, 5), (5, 1), torch.float32))
    assert kind(((2, 3), (3, 1), torch.float32)) != kind(((2,), (1,), torch.float32))
    assert kind(((2, 3), (3, 1), torch.float32)) != kind(((2, 3), (3, 1), torch.float64))
    assert kind((int, 1)) == kind((int, 2))
    assert kind((int, 1)) != kind((float, 1.0))
    assert kind((int, 1)) != kind((int, 1), modes=("no_grad",))


def test_calls_of_the_same_sizes() -> None:
    def sizes(*args: Any, **kwargs: Any) -> Any:
        return sizes_of(args, kwargs)

    x, y = torch.ones(2, 3), torch.ones(3, 2)
    assert sizes(x) == sizes(torch.zeros(2, 3))
    assert sizes(x) != sizes(y)
    assert sizes(x, y) != sizes(y, x)
    assert sizes(a=x) == sizes(a=torch.zeros(2, 3))
    assert sizes(a=x) != sizes(a=y)
