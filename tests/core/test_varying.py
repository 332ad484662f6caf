"""Varying sizes: what becomes symbolic, and when that is given up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from switchgear_core.record.signature import Argument, Arguments, flatten_arguments
from switchgear_runtime.varying import VaryingSizes


def call(*args: torch.Tensor) -> Arguments:
    return flatten_arguments(args, {})


def entry(*inputs: torch.Tensor, numbers: tuple[str, ...] = ()) -> Any:
    """An entry that was compiled for these arguments, and finds these numbers of Python's changed."""
    proxies = [SimpleNamespace(shape=tuple(one.shape), stride=one.stride()) for one in inputs]
    sources = [Argument(place) for place in range(len(inputs))]
    captured = SimpleNamespace(sources=sources, trace=SimpleNamespace(inputs=proxies))
    return SimpleNamespace(spec=call(*inputs).spec, captured=captured, varying=lambda leaves: list(numbers))


def test_dimensions_that_differ_are_symbolic_from_then_on() -> None:
    sizes = VaryingSizes()
    first, second, third = torch.ones(2, 3), torch.ones(4, 3), torch.ones(4, 5)
    kind = call(first).kind
    assert sizes.marks(kind) == {}
    assert sizes.notice(call(second), [entry(first)]) == {0: {0}}
    assert sizes.notice(call(third), [entry(second)]) == {0: {0, 1}}
    assert sizes.marks(kind) == {0: {0, 1}}
    assert sizes.marks(call(torch.ones(2)).kind) == {}


def test_calls_that_cannot_be_compared_tell_nothing() -> None:
    sizes = VaryingSizes()
    x = torch.ones(2, 3)
    others = entry(torch.ones(2, 3, 1)), entry(x, x), entry(x)  # other ranks, another structure, no difference
    assert sizes.notice(call(x), others) == {}
    assert sizes.notice(call(x.t().contiguous().t()), others) == {0: {~0, ~1}}  # other strides
    assert sizes.notice(call(x), [entry(torch.ones(5, 3)), entry(torch.ones(2, 7))]) == {0: {0, ~0, ~1}}


def test_dimensions_that_cannot_be_symbolic_are_given_up() -> None:
    sizes = VaryingSizes()
    first, second = torch.ones(2), torch.ones(4)
    kind = call(first).kind
    assert sizes.notice(call(second), [entry(first, numbers=("self.n",))]) == {0: {0}, "self.n": {0}}
    sizes.give_up(kind)  # it may be the numbers' fault
    assert sizes.marks(kind) == {0: {0}}
    assert sizes.notice(call(second), [entry(first, numbers=("self.n",))]) == {0: {0}}
    sizes.give_up(kind)
    assert sizes.marks(kind) == sizes.notice(call(second), [entry(first)]) == {}


def test_a_number_is_symbolic_four_times_in_vain() -> None:
    sizes = VaryingSizes()
    x = torch.ones(2)
    kind = call(x).kind
    for _ in range(4):
        assert sizes.notice(call(x), [entry(x, numbers=("self.n",))]) == {"self.n": {0}}
        sizes.decide(kind, ["self.n"])
    assert sizes.marks(kind) == sizes.notice(call(x), [entry(x, numbers=("self.n",))]) == {}


def test_marked_dimensions_are_symbolic_at_once() -> None:
    sizes = VaryingSizes()
    x, y = torch.ones(2, 3), torch.ones(4, 3)
    torch._dynamo.mark_dynamic(y, 0)
    assert sizes.notice(call(x, y), []) == {1: {0}}
    assert sizes.notice(call(torch.ones(5, 3), y), [entry(x, y)]) == {0: {0}, 1: {0}}
