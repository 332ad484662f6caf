"""Results of operators on CPU tensors of one dtype, mostly contiguous: contiguous tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from switchgear_core.nesting import tensors_in
from switchgear_core.torch_private.fakes import OpOverload

#: A shape for each result, None for an absent result; or None for unfitting or uncommon arguments.
Shapes: TypeAlias = Sequence[Sequence[int] | None] | None
T: TypeAlias = torch.Tensor


def plain_results(func: OpOverload, args: Sequence[Any]) -> Any:
    """Return meta tensors with the operator's result layouts; None if they are unknown."""
    if func not in _SHAPES:
        return None
    shapes, index, free = _SHAPES[func]
    tensors = list(tensors_in(args))
    dtypes = {tensor.dtype for tensor in tensors if index is None or tensor is not args[index]}
    is_index = index is None or args[index].dtype == torch.int64
    is_known = len(dtypes) == 1 and dtypes <= _DTYPES and is_index
    is_common = all(tensor.device.type == "cpu" and tensor.numel() > 0 for tensor in tensors)
    if not (is_known and is_common and all(map(_is_plain, tensors[free:]))):
        return None
    (dtype,) = dtypes
    results = [
        None if shape is None else torch.empty(shape, dtype=dtype, device="meta")
        for shape in shapes(*args) or ()
    ]
    return tuple(results) if len(func._schema.returns) > 1 and results else (*results, None)[0]


_DTYPES = {torch.float32, torch.float64}


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.stride() == torch.empty(tensor.shape, device="meta").stride()


def _have(shape: Sequence[int], *tensors: T | None) -> bool:
    return all(tensor is None or tensor.shape == shape for tensor in tensors)


def _gradients(
    mask: Sequence[bool], arguments: Sequence[T | None], shapes: Sequence[Sequence[int]]
) -> Shapes:
    """Return the shapes of the requested gradients; None if an argument to differentiate is absent."""
    pairs = zip(mask, arguments, strict=True)
    if any(is_needed and argument is None for is_needed, argument in pairs):
        return None
    return [shape if is_needed else None for is_needed, shape in zip(mask, shapes, strict=True)]


def _softmax(x: T, dim: int, half_to_float: bool) -> Shapes:
    range(x.dim())[dim]
    return [x.shape]


def _softmax_backward(grad: T, output: T, dim: int, dtype: torch.dtype) -> Shapes:
    range(grad.dim())[dim]
    return [grad.shape] if grad.shape == output.shape and dtype == grad.dtype else None


def _nll_loss(x: T, target: T, weight: T | None, reduction: int, ignore_index: int) -> Shapes:
    fits = x.dim() == 2 and _have(x.shape[:1], target) and _have(x.shape[1:], weight)
    return [() if reduction else target.shape, ()] if fits else None


def _nll_loss_backward(grad: T, x: T, *rest: Any) -> Shapes:
    *options, total = rest
    losses = _nll_loss(x, *options)
    return [x.shape] if losses and _have(losses[0] or (), grad) and _have((), total) else None


def _mse_loss(x: T, y: T, reduction: int = 1) -> Shapes:
    return [() if reduction else x.shape] if x.shape == y.shape else None


def _mse_loss_backward(grad: T, x: T, y: T, reduction: int) -> Shapes:
    return [x.shape] if x.shape == y.shape and grad.shape in ((), x.shape) else None


def _convolution(x: T, weight: T, bias: T | None, *options: Any) -> Shapes:
    stride, padding, dilation, transposed, output_padding, groups = options
    dims = x.dim() - 2
    fits = (
        weight.dim() == x.dim()
        and len(stride) == len(padding) == len(dilation) == dims > 0
        and min(*stride, *dilation, groups) > 0
        and min(padding) >= 0
        and not (transposed or any(output_padding) or weight.shape[0] % groups)
        and x.shape[1] == weight.shape[1] * groups
        and _have(weight.shape[:1], bias)
    )
    if not fits:
        return None
    places = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    sizes = [(n + 2 * pad - d * (k - 1) - 1) // step + 1 for n, k, step, pad, d in places]
    return [(x.shape[0], weight.shape[0], *sizes)] if min(sizes) > 0 else None


def _convolution_backward(grad: T, x: T, weight: T, bias_sizes: Any, *rest: Any) -> Shapes:
    *options, mask = rest
    results = _convolution(x, weight, None, *options)
    # some kernels compute the weight's gradient when only the bias's is requested
    if not results or grad.shape != results[0] or mask[1] < mask[2]:
        return None
    return _gradients(mask, (x, weight, x), (x.shape, weight.shape, weight.shape[:1]))


def _batch_norm(x: T, *rest: Any) -> Shapes:
    *parameters, training, _, _ = rest
    fits = training and x.dim() > 1 and _have(x.shape[1:2], *parameters)
    return [x.shape, *[x.shape[1:2]] * 4] if fits else None


def _batch_norm_backward(grad: T, x: T, weight: T | None, *rest: Any) -> Shapes:
    *statistics, training, _, mask = rest
    channels = x.shape[1:2]
    if not training or grad.shape != x.shape or not _have(channels, weight, *statistics):
        return None
    return _gradients(mask, (x, weight, weight), (x.shape, channels, channels))


def _layer_norm(x: T, shape: Sequence[int], weight: T | None, bias: T | None, eps: float) -> Shapes:
    outer = x.dim() - len(shape)
    fits = shape and x.shape[outer:] == torch.Size(shape) and _have(x.shape[outer:], weight, bias)
    statistics = (*x.shape[:outer], *[1] * len(shape))
    return [x.shape, statistics, statistics] if fits else None


def _layer_norm_backward(
    grad: T, x: T, shape: Sequence[int], mean: T, rstd: T, *rest: Any
) -> Shapes:
    weight, bias, mask = rest
    results = _layer_norm(x, shape, weight, bias, 0.0)
    fits = results and _have(x.shape, grad) and _have(results[1] or (), mean, rstd)
    return _gradients(mask, (x, weight, bias), (x.shape, shape, shape)) if fits else None


def _embedding(weight: T, indices: T, *options: Any) -> Shapes:
    return [(*indices.shape, weight.shape[1])] if weight.dim() == 2 else None


def _cat(tensors: Sequence[T], dim: int = 0) -> Shapes:
    place = range(tensors[0].dim())[dim]
    others = {(*tensor.shape[:place], 0, *tensor.shape[place + 1 :]) for tensor in tensors}
    if len(others) > 1:
        return None
    size = sum(tensor.shape[place] for tensor in tensors)
    return [(*tensors[0].shape[:place], size, *tensors[0].shape[place + 1 :])]


_aten = torch.ops.aten
#: The shapes of results, the position of an index argument, and how many leading tensors may have any strides.
_SHAPES = {
    getattr(_aten, name).default: (shapes, index, free)
    for shapes, index, free, names in (
        (_batch_norm, None, 0, "_native_batch_norm_legit_functional"),
        (_batch_norm_backward, None, 1, "native_batch_norm_backward"),
        (_cat, None, 0, "cat"),
        (_convolution, None, 0, "convolution"),
        (_convolution_backward, None, 1, "convolution_backward"),
        (_embedding, 1, 2, "embedding"),
        (_layer_norm, None, 0, "native_layer_norm"),
        (_layer_norm_backward, None, 1, "native_layer_norm_backward"),
        (_mse_loss, None, 0, "mse_loss"),
        (_mse_loss_backward, None, 1, "mse_loss_backward"),
        (_nll_loss, 1, 3, "nll_loss_forward"),
        (_nll_loss_backward, 2, 5, "nll_loss_backward"),
        (_softmax, None, 1, "_log_softmax _softmax"),
        (_softmax_backward, None, 2, "_log_softmax_backward_data _softmax_backward_data"),
    )
    for name in names.split()
}
