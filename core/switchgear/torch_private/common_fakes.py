"""Fakes of the commonest operators, by kernels written in C++.

PyTorch computes most fakes by formulas in Python, which import TorchDynamo and sympy: a second in every process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses import fake_tensor

from switchgear.nesting import map_tensors
from switchgear.torch_private.fakes import FakeMode, OpOverload, fake_of_layout
from switchgear.torch_private.layouts import TAKE_NUMBERS, iterated
from switchgear.torch_private.modes import real_dispatch

#: Operators whose kernels for PyTorch's meta device are written in C++.
_BY_META_KERNEL = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for overload, names in (
        (
            "default",
            "alias as_strided detach expand permute slice split_with_sizes squeeze t unsqueeze view",
        ),
        ("dim", "squeeze"),
        ("int", "select transpose"),
        ("Tensor", "slice split"),
    )
    for name in names.split()
    if hasattr(getattr(torch.ops.aten, name), overload)
)
#: Whose kernels take two tensors of any layouts in the order of the arguments, by which strides are chosen.
_IN_ORDER = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for overload, names in (
        ("Tensor", "add sub mul div eq ne gt ge lt le bitwise_and bitwise_or"),
        ("default", "maximum minimum"),
    )
    for name in names.split()
)
#: Pointwise operators of more than one kernel.
_NOT_ONE_KERNEL = frozenset(
    {
        torch.ops.aten.angle.default,
        torch.ops.aten.clone.default,
        torch.ops.aten.ldexp.Tensor,
        torch.ops.aten.mvlgamma.default,
    }
)
_SUM = torch.ops.aten.sum.dim_IntList
_MATRICES = {
    torch.ops.aten.mm.default: 2,
    torch.ops.aten.addmm.default: 2,
    torch.ops.aten.bmm.default: 3,
    torch.ops.aten.baddbmm.default: 3,
}


def common_fake(
    mode: FakeMode, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What a common operator returns for fakes without lazy bits; None where PyTorch's formula is to say it."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    devices = {fake.fake_device for fake in tensors if isinstance(fake, fake_tensor.FakeTensor)}
    if len(devices) != 1 or any(fake.is_conj() or fake.is_neg() for fake in tensors):
        return None
    (device,) = devices
    try:
        if func in _BY_META_KERNEL:
            with fake_tensor.in_kernel_invocation_manager(mode):
                result = func(*args, **kwargs)
            return map_tensors(lambda meta: fake_tensor.FakeTensor(mode, meta, device), result)
        if func in _MATRICES:
            return _product(mode, _MATRICES[func], tensors, device)
        if func is _SUM:
            with real_dispatch():
                layout = _sum(*args, **kwargs)
            return fake_of_layout(mode, (*layout, device, 0, False, False))
        layouts = {(fake.shape, fake.stride()) for fake in tensors}
        is_ordered = len(layouts) == 1 or (func in _IN_ORDER and len(tensors) == 2)
        if _is_pointwise(func) and is_ordered and not kwargs:
            with real_dispatch():
                layout = _pointwise(func, args)
            if any(fake.is_complex() for fake in tensors) and not layout[2].is_complex:
                return None
            return fake_of_layout(mode, (*layout, device, 0, False, False))
    except (RuntimeError, TypeError, IndexError):
        pass  # as PyTorch's formula says, or for want of a kernel on the CPU
    return None


def _product(
    mode: FakeMode, dims: int, tensors: Sequence[torch.Tensor], device: torch.device
) -> torch.Tensor | None:
    """A product of matrices, or of batches of them, to which another tensor may be added."""
    *added, left, right = tensors
    fits = left.dim() == right.dim() == dims and left.shape[-1] == right.shape[-2]
    if not fits or left.shape[:-2] != right.shape[:-2] or len({one.dtype for one in tensors}) > 1:
        return None
    shape = torch.Size((*left.shape[:-1], right.shape[-1]))
    meta = torch.empty(shape, device="meta")
    for one in added:
        torch.empty(one.shape, device="meta").expand(shape)
    stride = meta.stride()
    return fake_of_layout(mode, (shape, stride, left.dtype, device, 0, False, False))


def _sum(
    summed: torch.Tensor, dims: Sequence[int] | None, keepdim: bool = False, **dtype: torch.dtype
) -> tuple[Any, Any, torch.dtype]:
    """Shape, stride and dtype of a sum; the dtype is that of its kernel, of no elements."""
    gone = {dim % summed.dim() for dim in dims or range(summed.dim())} if summed.dim() else set()
    kept = [index for index in range(summed.dim()) if index not in gone]
    shape = [size if i in kept else 1 for i, size in enumerate(summed.shape)]
    if not keepdim:
        shape = [summed.shape[index] for index in kept]
    empty = torch.zeros((0,) * summed.dim(), dtype=summed.dtype)
    meta = torch.empty(shape, device="meta")
    return meta.shape, meta.stride(), _SUM(empty, dims, keepdim, **dtype).dtype


def _is_pointwise(func: OpOverload) -> bool:
    returns = func._schema.returns
    is_function = len(returns) == 1 and returns[0].alias_info is None
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    is_one = torch.Tag.pointwise in func.tags and func not in _NOT_ONE_KERNEL
    return is_function and is_one and not is_random


def _pointwise(func: OpOverload, args: Sequence[Any]) -> tuple[Any, Any, torch.dtype]:
    """Shape, stride and dtype of what a pointwise operator returns; the dtype is that of its kernel, of no elements."""
    empty = [
        torch.zeros((0,) * arg.dim(), dtype=arg.dtype) if isinstance(arg, torch.Tensor) else arg
        for arg in args
    ]
    operands = [
        torch.empty_strided(arg.shape, arg.stride(), device="meta")
        for arg in args
        if isinstance(arg, torch.Tensor)
    ]
    if func in TAKE_NUMBERS and len(operands) == 1:
        operands.append(torch.empty((), device="meta"))
    meta = iterated(*operands)
    return meta.shape, meta.stride(), func(*empty).dtype
