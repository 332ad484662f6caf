"""Strides and dtypes of results for which kernels differ from PyTorch's formulas for fakes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import fake_tensor

from switchgear_core.nesting import tensors_in
from switchgear_core.torch_private.fakes import FakeMode, fake_of_layout, is_fake, layout_of
from switchgear_core.torch_private.names import private

if TYPE_CHECKING:
    from torch._prims_common import suggest_memory_format
else:
    suggest_memory_format = private("torch._prims_common.suggest_memory_format")


#: Kernels that copy the argument with the memory before it, unlike PyTorch's fakes.
KEEP_PLACE = frozenset(
    (
        torch.ops.aten.select_scatter.default,
        torch.ops.aten.slice_scatter.default,
        torch.ops.aten.diagonal_scatter.default,
    )
)


def iterated(*tensors: torch.Tensor) -> torch.Tensor:
    """Return the result of a pointwise kernel of these tensors; one or two tensors use a meta kernel in C++."""
    if len(tensors) > 2:
        return torch.addcmul(*tensors)
    first, *_, last = (*tensors, *tensors)
    result: torch.Tensor = torch.ops.aten.silu_backward(first, last)
    return result


def _broadcast_copy(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    wide: torch.Tensor = torch.broadcast_tensors(tensor, other)[0]
    return wide.clone(memory_format=torch.contiguous_format)


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, device="meta")


def _suggested(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, memory_format=suggest_memory_format(tensor), device="meta")


#: Operators whose fakes have other strides than their results, with a function of some arguments that lays results out
#: as the kernels do.
LAID_OUT_AS: dict[object, tuple[slice, Callable[..., torch.Tensor]]] = {
    functools.reduce(getattr, name.split("."), torch.ops.aten): (operands, kernel)
    for kernel, operands, names in (
        (
            iterated,
            slice(1),
            "clamp.default clamp_max.default clamp_min.default gelu.default hardshrink.default isinf.default "
            "logit.default relu.default softshrink.default threshold.default",
        ),
        (
            iterated,
            slice(2),
            "_prelu_kernel.default clamp_max.Tensor clamp_min.Tensor complex.default copysign.Tensor div.Tensor_mode "
            "floor_divide.default hardsigmoid_backward.default hardswish_backward.default hardtanh_backward.default "
            "heaviside.default huber_loss.default logaddexp.default logical_and.default logical_or.default "
            "logical_xor.default logit_backward.default native_dropout_backward.default polar.default "
            "softplus_backward.default special_xlog1py.default xlogy.Tensor",
        ),
        (iterated, slice(0, 6, 5), "elu_backward.default"),
        (iterated, slice(3), "clamp.Tensor"),
        (
            torch.clone,
            slice(1),
            "binary_cross_entropy.default deg2rad.default empty_like.default fill.Scalar fill.Tensor flip.default "
            "full_like.default hardtanh.default index_put.default nan_to_num.default ones_like.default "
            "rad2deg.default rand_like.default randint_like.default randint_like.low_dtype randn_like.default "
            "sort.default sort.stable zeros_like.default",
        ),
        (_broadcast_copy, slice(2), "masked_fill.Scalar masked_fill.Tensor"),
        (
            _contiguous,
            slice(1),
            "_log_softmax.default isin.Tensor_Scalar isin.Tensor_Tensor log_sigmoid_forward.default tril.default "
            "triu.default",
        ),
        (
            _contiguous,
            slice(1, 2),
            "huber_loss_backward.default mse_loss_backward.default pow.Scalar smooth_l1_loss_backward.default",
        ),
        (
            _suggested,
            slice(1),
            "native_batch_norm.default native_channel_shuffle.default native_group_norm.default roll.default",
        ),
    )
    for name in names.split()
}


VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})
#: Operators whose fakes ignore a number, which broadcasts: strides of dimensions of size 1 depend on it.
TAKE_NUMBERS = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for overload, names in (
        ("Tensor", "add sub mul div"),
        ("Scalar", "add sub mul div rsub eq ne gt ge lt le remainder fmod"),
    )
    for name in names.split()
)


def laid_out(
    mode: FakeMode,
    kernel: tuple[slice, Callable[..., Any]],
    result: Any,
    args: tuple[Any, ...],
    kwargs: Any,
) -> object:
    """Return an operator's fake results, with the strides of its kernel for results of this shape."""
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return result
    operands, function = kernel
    # a number is a tensor without dimensions to a kernel
    layouts = [
        (arg.shape, arg.stride()) if is_fake(arg) else ((), ())
        for arg in args[operands]
        if arg is not None
    ]
    reference = function(*[torch.empty_strided(*layout, device="meta") for layout in layouts])

    def laid_out(fake: fake_tensor.FakeTensor) -> torch.Tensor:
        layout = (
            layout_of(mode, fake)
            if fake.shape == reference.shape and fake.stride() != reference.stride()
            else None
        )
        return (
            fake
            if layout is None
            else fake_of_layout(mode, (layout[0], reference.stride(), *layout[2:]))
        )

    return tuple(map(laid_out, result)) if isinstance(result, tuple) else laid_out(result)


_aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)
_UPDATING = _aten._native_batch_norm_legit_functional.default
_NORMS = {
    _UPDATING,
    _aten._native_batch_norm_legit.no_stats,
    *[getattr(_aten, f"native_{name}_norm").default for name in ("layer", "group", "batch")],
    *[getattr(_aten, f"_native_batch_norm_legit{name}").default for name in ("", "_no_training")],
}


def with_dtypes(mode: FakeMode, func: object, result: Any, args: tuple[Any, ...]) -> Any:
    """Return the fake results of a formula, in the dtypes of the kernel.

    On the CPU norms keep statistics in float32 if any argument is float32; formulas keep them in the input's dtype.
    """
    if func is _aten.native_group_norm_backward.default:
        dtypes = {0: args[1].dtype}
    elif func in _NORMS and args[0].dtype in _HALVES:
        is_mixed = any(tensor.dtype is torch.float32 for tensor in tensors_in(args))
        dtypes = dict.fromkeys((1, 2), torch.float32) if is_mixed else {}
        if func is _UPDATING:
            dtypes |= {3: args[3].dtype, 4: args[4].dtype}
    else:
        return result
    if args[0].device.type != "cpu":
        return result
    with mode:
        return tuple(
            [
                fake if fake is None else fake.to(dtypes.get(i, fake.dtype))
                for i, fake in enumerate(result)
            ]
        )
