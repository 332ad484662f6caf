"""Results that are laid out plainly, said without a kernel: those of the kernels, or none."""

from __future__ import annotations

from typing import Any

import torch

from switchgear_core.torch_private.plain_results import plain_results
from tests.in_turn import in_turn

aten = torch.ops.aten


def r(*shape: int) -> torch.Tensor:
    return torch.rand(shape)


def labels(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


X, IMAGES, KERNEL = r(3, 5), r(2, 4, 7, 8), r(6, 2, 3, 3)
ONE = torch.tensor(1.0)
PLACED = ([1, 2], [1, 0], [1, 1], False, [0, 0], 2)
CHANNELS = (r(4), r(4), r(4), r(4).add(1))
NORMED = aten.native_layer_norm.default(X, [5], r(5), r(5), 1e-5)
BATCHED = aten.native_batch_norm.default(IMAGES, *CHANNELS, True, 0.1, 1e-5)
FILTERED = aten.convolution.default(IMAGES, KERNEL, r(6), *PLACED)
MASK, NO_BIAS = [True, True, True], [True, True, False]

KNOWN: list[tuple[Any, tuple[Any, ...]]] = [
    (aten._softmax.default, (X.t(), 1, False)),
    (aten.native_batch_norm_backward.default, (IMAGES, IMAGES, r(4), *CHANNELS[2:], *BATCHED[1:], True, 1e-5, MASK)),
    (aten._softmax.default, (X, 1, False)),
    (aten._log_softmax.default, (X, -1, False)),
    (aten._softmax_backward_data.default, (X, X, 1, torch.float32)),
    (aten.nll_loss_forward.default, (X, labels(3), None, 1, -100)),
    (aten.nll_loss_forward.default, (X, labels(3), r(5), 0, -100)),
    (aten.nll_loss_backward.default, (ONE, X, labels(3), None, 1, -100, ONE)),
    (aten.nll_loss_backward.default, (r(3), X, labels(3), None, 0, -100, ONE)),
    (aten.mse_loss.default, (X, X)),
    (aten.mse_loss.default, (X, X, 0)),
    (aten.mse_loss_backward.default, (ONE, X, X, 1)),
    (aten.mse_loss_backward.default, (X, X, X, 0)),
    (aten.convolution.default, (IMAGES, KERNEL, r(6), *PLACED)),
    (aten.convolution.default, (IMAGES, KERNEL, None, *PLACED)),
    (aten.convolution.default, (r(2, 3, 9), r(5, 3, 2), None, [3], [1], [2], False, [0], 1)),
    (aten.convolution_backward.default, (FILTERED, IMAGES, KERNEL, [6], *PLACED, MASK)),
    (aten.convolution_backward.default, (FILTERED, IMAGES, KERNEL, None, *PLACED, NO_BIAS)),
    (aten._native_batch_norm_legit_functional.default, (IMAGES, *CHANNELS, True, 0.1, 1e-5)),
    (aten.native_layer_norm.default, (X, [5], r(5), r(5), 1e-5)),
    (aten.native_layer_norm.default, (X, [5], None, None, 1e-5)),
    (aten.native_layer_norm_backward.default, (X, X, [5], *NORMED[1:], r(5), r(5), MASK)),
    (aten.embedding.default, (X, labels(2, 4))),
    (aten.cat.default, ([X, X, r(1, 5)],)),
    (aten.cat.default, ([X, r(3, 2)], -1)),
    (aten.cat.default, ([X, r(3, 2)], 1)),
]
NOT_KNOWN: list[tuple[Any, tuple[Any, ...]]] = [
    (aten._softmax_backward_data.default, (X, X, 1, torch.float64)),
    (aten._softmax.default, (r(0, 5), 1, False)),
    (aten._softmax.default, (X.half(), 1, False)),
    (aten._softmax.default, (X.to("meta"), 1, False)),
    (aten.nll_loss_forward.default, (X, labels(2), None, 1, -100)),
    (aten.nll_loss_forward.default, (X, labels(3), r(4), 1, -100)),
    (aten.nll_loss_forward.default, (r(5), labels(), None, 1, -100)),
    (aten.nll_loss_backward.default, (r(2), X, labels(3), None, 0, -100, ONE)),
    (aten.mse_loss.default, (X, r(5))),
    (aten.mse_loss_backward.default, (r(3), X, X, 0)),
    (aten.convolution.default, (IMAGES, KERNEL, r(5), *PLACED)),
    (aten.convolution.default, (IMAGES, r(6, 4, 3, 3), None, *PLACED)),
    (aten.convolution.default, (IMAGES, r(6, 2, 9, 9), None, *PLACED)),
    (aten.convolution.default, (IMAGES, KERNEL, None, [1, 2], [1, 0], [1, 1], True, [0, 0], 2)),
    (aten.convolution.default, (IMAGES, KERNEL, None, [1, 0], [1, 0], [1, 1], False, [0, 0], 2)),
    (aten.convolution.default, (IMAGES, KERNEL, None, [1, 2], [-1, 0], [1, 1], False, [0, 0], 2)),
    (aten.convolution.default, (IMAGES, KERNEL, None, [1], [1, 0], [1, 1], False, [0, 0], 2)),
    (aten.convolution_backward.default, (r(2, 6, 1, 1), IMAGES, KERNEL, [6], *PLACED, MASK)),
    (aten.convolution_backward.default, (FILTERED, IMAGES, KERNEL, [6], *PLACED, [True, False, True])),
    (aten._native_batch_norm_legit_functional.default, (IMAGES, *CHANNELS, False, 0.1, 1e-5)),
    (aten._native_batch_norm_legit_functional.default, (IMAGES, r(3), *CHANNELS[1:], True, 0.1, 1e-5)),
    (aten._native_batch_norm_legit_functional.default, (r(4), None, None, None, None, True, 0.1, 1e-5)),
    (aten.native_batch_norm_backward.default, (IMAGES, IMAGES, r(4), *CHANNELS[2:], *BATCHED[1:], False, 1e-5, MASK)),
    (aten.native_batch_norm_backward.default, (IMAGES, IMAGES, None, *CHANNELS[2:], *BATCHED[1:], True, 1e-5, MASK)),
    (aten.native_layer_norm.default, (X, [3], None, None, 1e-5)),
    (aten.native_layer_norm.default, (X, [5], r(3), None, 1e-5)),
    (aten.native_layer_norm_backward.default, (r(2, 5), X, [5], *NORMED[1:], r(5), r(5), MASK)),
    (aten.native_layer_norm_backward.default, (X, X, [5], *NORMED[1:], None, r(5), MASK)),
    (aten.embedding.default, (r(5), labels(2))),
    (aten.embedding.default, (X, labels(2).int())),
    (aten.cat.default, ([X, r(2, 2)],)),
    (aten.cat.default, ([X, X.double()],)),
    (aten.grid_sampler.default, (X,)),
]


@in_turn(function__args=KNOWN)
def test_results_are_the_kernels(function: Any, args: tuple[Any, ...]) -> None:
    def told(results: Any) -> list[Any]:
        several = results if isinstance(results, (tuple, list)) else [results]
        return [one if one is None else (one.shape, one.stride(), one.dtype) for one in several]

    found, expected = plain_results(function, args), function(*args)
    assert isinstance(found, tuple) is isinstance(expected, tuple)
    assert told(found) == told(expected)


@in_turn(function__args=NOT_KNOWN)
def test_results_that_are_not_known(function: Any, args: tuple[Any, ...]) -> None:
    assert plain_results(function, args) is None
