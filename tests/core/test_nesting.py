"""Tensors in nests of tuples, lists, dicts and slices: in order, and replaced in a nest of the same classes."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
import torch

from switchgear.errors import Unsupported
from switchgear_core.nesting import instances_in, map_instances, map_tensors, tensors_in, twin
from tests.in_turn import in_turn


class Pair(NamedTuple):
    """A named tuple."""

    first: Any
    second: Any


A, B, C = (torch.tensor(float(number)) for number in range(3))
NESTS: list[tuple[Any, list[torch.Tensor]]] = [
    (A, [A]),
    ((A, [B], C), [A, B, C]),
    ([A, (B, A)], [A, B, A]),
    ({"x": A, "y": {"z": B}}, [A, B]),
    (slice(A, B, C), [A, B, C]),
    (Pair(A, [B]), [A, B]),
    (torch.Size([2, 3]), []),
    ((1, 2.0, True, "a", None, torch.float32, torch.device("cpu"), 3 + 1j, b"a", ...), []),
    ((), []),
]


@in_turn(nest__tensors=NESTS)
def test_tensors_in_order_and_replaced(nest: Any, tensors: list[torch.Tensor]) -> None:
    def classes(value: Any) -> Any:
        if isinstance(value, dict):
            return [(key, classes(item)) for key, item in value.items()]
        if isinstance(value, slice):
            return slice, classes((value.start, value.stop, value.step))
        return type(value), [*map(classes, value)] if isinstance(value, (tuple, list)) else None

    assert [*map(id, tensors_in(nest))] == [*map(id, tensors)]
    replaced = map_tensors(lambda tensor: tensor + 1, nest)
    assert [*tensors_in(replaced)] == [tensor + 1 for tensor in tensors]
    assert classes(replaced) == classes(nest)
    assert repr(map_tensors(lambda tensor: tensor, nest)) == repr(nest)


def test_instances_of_other_classes() -> None:
    nest = [3 + 1j, {"a": (A, b"b")}, slice(None, 2 + 2j)]
    assert instances_in((complex, bytes), nest) == [3 + 1j, b"b", 2 + 2j]
    expected: Any = copy.copy(nest)
    expected[0], expected[2] = 4 + 1j, slice(None, 3 + 2j)
    assert map_instances(complex, lambda number: number + 1, nest) == expected


def test_a_generator_of_tensors_is_refused() -> None:
    with pytest.raises(Unsupported, match="a generator was passed to a PyTorch function; pass a list"):
        map_tensors(torch.Tensor.detach, [(one for one in [A])])


TENSORS = {
    "contiguous": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "a part": torch.arange(12.0).reshape(3, 4)[1:, ::2],
    "expanded": torch.arange(3.0).expand(2, 3),
    "empty": torch.empty(0, 3),
    "a number": torch.tensor(2.0),
    "sparse": torch.eye(3).to_sparse(),
}


@in_turn(name=TENSORS)
def test_a_twin_is_laid_out_alike_in_memory_of_its_own(name: str) -> None:
    one = TENSORS[name]
    other = twin(one)
    assert other.dtype == one.dtype
    if one.is_sparse:
        assert torch.equal(other.to_dense(), one.to_dense())
        return
    assert torch.equal(other, one)
    assert other.stride() == one.stride()
    assert other.storage_offset() == 0
    assert not other.numel() or other.data_ptr() != one.data_ptr()
