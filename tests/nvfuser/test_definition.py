"""What is recorded for nvFuser: layouts, keys, text, and the check of dtypes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import switchgear as sg
from switchgear_nvfuser.definition import DTYPES, Definition, Layout, Value, frozen, layout_of


def proxy(shape: tuple[int, ...], stride: tuple[int, ...]) -> sg.TensorProxy:
    return sg.TensorProxy("x", shape, stride, torch.float32, torch.device("cpu"))


#: Sizes, strides; contiguity from the slowest dimension to the fastest, and each dimension's rank.
LAYOUTS = [
    ((4, 6), (6, 1), (True, True), (1, 0)),
    ((4, 6), (1, 4), (True, True), (0, 1)),
    ((4, 6), (12, 2), (True, False), (1, 0)),
    ((4, 6), (12, 1), (False, True), (1, 0)),
    ((4, 1, 6), (6, 6, 1), (True, None, True), (2, 1, 0)),
    ((1, 6), (1, 1), (None, True), (1, 0)),
    ((4, 1), (1, 1), (True, None), (1, 0)),
    ((4, 6), (0, 1), (None, True), (1, 0)),
    ((4, 6), (6, 0), (False, None), (1, 0)),
    ((4, 6, 5), (0, 5, 1), (None, True, True), (2, 1, 0)),
    ((4, 6, 5), (0, 0, 0), (None, None, None), (2, 1, 0)),
    ((2, 3, 4, 5), (60, 1, 15, 3), (True, True, True, True), (3, 0, 2, 1)),
    ((), (), (), ()),
]


@pytest.mark.parametrize(("shape", "stride", "contiguity", "order"), LAYOUTS)
def test_layout(
    shape: tuple[int, ...], stride: tuple[int, ...], contiguity: tuple[bool | None, ...], order: tuple[int, ...]
) -> None:
    found = layout_of(proxy(shape, stride), static=False)
    assert (found.contiguity, found.stride_order) == (contiguity, order)
    assert found.shape == tuple(1 if size == 1 else -1 for size in shape)
    assert layout_of(proxy(shape, stride), static=True).shape == shape


@pytest.mark.nvfuser
@pytest.mark.parametrize(("shape", "stride", "contiguity", "order"), LAYOUTS)
def test_layout_is_nvfusers(
    shape: tuple[int, ...], stride: tuple[int, ...], contiguity: tuple[bool | None, ...], order: tuple[int, ...]
) -> None:
    from switchgear_nvfuser.availability import load

    assert load().compute_tensor_descriptor(list(shape), list(stride)) == (list(contiguity), list(order))


def definition(number: Any = 1.0, contiguous: bool = True) -> Definition:
    made = Definition()
    value = made.input(Layout((-1, 1), (contiguous, None), (1, 0), torch.bfloat16))
    wide = made.call("cast", value, torch.float32, dtype=torch.float32)
    total = made.call("mul", made.call("size", value, 0, dtype=None), 2, dtype=None)
    made.outputs.append(made.call("truediv", made.call("add", wide, number, dtype=torch.float32), total, dtype=None))
    return made


def test_text() -> None:
    assert str(definition(float("-inf"))) == (
        "T0 = BFloat16[-1, 1]\n"
        "T1 = cast(T0, Float)\n"
        "n2 = size(T0, 0)\n"
        "n3 = mul(n2, 2)\n"
        "T4 = add(T1, -inf)\n"
        "n5 = truediv(T4, n3)\n"
        "return n5"
    )


def test_key() -> None:
    assert definition().key == definition().key
    hash(definition().key)
    numbers = [1.0, 1, True, 0.0, -0.0, float("nan"), 1.0000001]
    assert len({definition(number).key for number in numbers}) == len(numbers)
    assert definition(float("nan")).key == definition(float("nan")).key
    assert definition(contiguous=False).key != definition().key
    assert Definition(torch.device("cuda", 0)).key != Definition(torch.device("cuda", 1)).key


def test_frozen_keeps_what_is_no_number() -> None:
    assert frozen([Value(0, None), {"a": "b"}, None]) == (Value(0, None), (("a", "b"),), None)


def test_a_result_of_another_dtype_is_an_error() -> None:
    half = SimpleNamespace(dtype=lambda: torch.float16)
    ops = SimpleNamespace(cast=lambda x, dtype: half, size=lambda x, dim: 3, mul=lambda x, y: 6)
    fusion = SimpleNamespace(define_tensor=lambda **given: half, ops=ops)
    with pytest.raises(sg.errors.ExecutorFailed, match=r"nvFuser's cast gives torch\.float16, and torch\.float32"):
        definition().define(fusion, {dtype: dtype for dtype in DTYPES})


def test_stride_order_is_said_where_it_is_not_the_usual_one() -> None:
    seen: list[dict[str, Any]] = []
    fusion = SimpleNamespace(define_tensor=lambda **given: seen.append(given), ops=None)
    made = Definition()
    for order in ((1, 0), (0, 1)):
        made.input(Layout((-1, -1), (True, True), order, torch.float32))
    made.define(fusion, {torch.float32: "Float"})
    usual = {"shape": [-1, -1], "contiguity": [True, True], "dtype": "Float"}
    assert seen == [usual, {**usual, "stride_order": [0, 1]}]
