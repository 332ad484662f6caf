"""Fakes have the sizes and strides that kernels give, asked for the first time and remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from switchgear_core.torch_private import fake_mode, new_fake_mode
from tests.in_turn import in_turn

LAYOUTS = [
    *[((1, 3), (0, 1)), ((1, 3), (7, 2)), ((3, 1), (1, 5)), ((1, 1), (3, 0)), ((2, 1, 3), (3, 9, 1))],
    *[((1, 2, 3), (1, 3, 1)), ((1, 0), (2, 1)), ((2, 3), (3, 1)), ((3, 2), (1, 3))],
]


def views(x: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """Views of as many elements."""
    shapes = {(x.numel(),), (1, *x.shape), (*x.shape, 1), tuple(x.shape), tuple(reversed(x.shape)), (1, x.numel(), 1)}
    return [lambda one, shape=shape: one.view(shape) for shape in sorted(shapes)]  # type: ignore[misc]


def others(x: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """Operators whose results are laid out as their arguments are, or otherwise."""
    return [
        *(torch.clone, lambda one: one + 1, lambda one: one * one, torch.cos, lambda one: one.sum(0)),
        *(lambda one: one.transpose(0, 1), lambda one: one.contiguous(), lambda one: one > 0, lambda one: one.t()),
        *(lambda one: torch.where(one > 0, one, 1), lambda one: one[0], lambda one: torch.cat([one, one])),
        *(lambda one: one.softmax(-1), lambda one: one.double(), lambda one: one.expand(2, *one.shape)),
    ]


def layout(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    try:
        result = function(x)
    except (RuntimeError, ValueError):
        return "refused"
    is_view = result.untyped_storage()._cdata == x.untyped_storage()._cdata
    return result.shape, result.stride(), result.storage_offset(), result.dtype, is_view


@in_turn(shape_and_stride=LAYOUTS, made=[views, others])
def test_fakes_are_laid_out_as_kernels_lay_out(shape_and_stride: Any, made: Any) -> None:
    x = torch.empty_strided(*shape_and_stride).zero_()
    mode = new_fake_mode()
    with mode:
        fake = torch.empty_strided(*shape_and_stride)
    for place, function in enumerate(made(x)):
        expected = layout(function, x)
        for _ in range(2):
            with mode:
                assert layout(function, fake) == expected, place


@in_turn(shape_and_stride=LAYOUTS, is_inference=[False, True])
def test_views_that_no_kernel_of_the_meta_device_tells(shape_and_stride: Any, is_inference: bool) -> None:
    """PyTorch's own fakes have other strides beside sizes of one."""
    dtype = torch.float32 if is_inference else torch.complex64
    x = torch.empty_strided(*shape_and_stride, dtype=dtype).zero_().conj()
    mode = new_fake_mode()
    with mode:
        fake = torch.empty_strided(*shape_and_stride, dtype=dtype).conj()
    assert fake.is_conj() is not is_inference
    for place, function in enumerate(views(x)):
        expected = layout(function, x)
        with torch.inference_mode(is_inference), mode:
            assert layout(function, fake) == expected, place


def test_results_are_remembered_where_layouts_alone_decide_them() -> None:
    fake_mode.clear_fake_results()
    mode = new_fake_mode()
    with mode:
        x = torch.ones(2, 3)
        fake_mode.clear_fake_results()
        x.add_(1)
        x.resize_(3, 2)
        x.as_strided((2,), (1,))
        assert not fake_mode._RESULTS
        first, again = x + 1, x + 1
        assert [key[0] for key in fake_mode._RESULTS] == [torch.ops.aten.add.Tensor]  # type: ignore[index]
    assert first.untyped_storage()._cdata != again.untyped_storage()._cdata
