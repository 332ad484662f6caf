"""Fakes of the commonest operators, by kernels without imports, or from the layouts of results.

PyTorch computes most fakes by formulas in Python, whose imports of TorchDynamo and sympy cost a second per process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses import fake_tensor

from switchgear_core.nesting import map_tensors, tensors_in
from switchgear_core.torch_private.fakes import FakeMode, OpOverload
from switchgear_core.torch_private.layouts import TAKE_NUMBERS, iterated
from switchgear_core.torch_private.modes import real_dispatch
from switchgear_core.torch_private.plain_results import plain_results

aten = torch.ops.aten


def _overloads(names: str) -> frozenset[OpOverload]:
    """Return the existing operators of the given names."""
    parts = [name.split(".") for name in names.split()]
    return frozenset(
        getattr(getattr(aten, packet), overload)
        for packet, overload in parts
        if hasattr(getattr(aten, packet), overload)
    )


#: Operators whose kernels for PyTorch's meta device import nothing.
_BY_META_KERNEL = _overloads(
    "_to_copy.default _unsafe_view.default alias.default as_strided.default clone.default detach.default "
    "diagonal.default embedding_dense_backward.default empty.memory_format empty_strided.default expand.default "
    "full.default index_select.default max.dim min.dim new_empty.default new_full.default new_ones.default "
    "new_zeros.default ones.default permute.default scalar_tensor.default select.int slice.Tensor slice.default "
    "split.Tensor split_with_sizes.default squeeze.default squeeze.dim squeeze.dims t.default transpose.int "
    "unbind.int unfold.default unsqueeze.default view.default zeros.default"
)
#: Operators whose `out` overload has such a kernel.
_BY_OUT = {
    aten.gather.default: aten.gather.out,
    aten.scatter.src: aten.scatter.src_out,
    aten.scatter.value: aten.scatter.value_out,
}
#: Operators composed of others.
_COMPOSITE = _overloads(
    "flatten.using_ints to.device to.dtype var_mean.dim where.ScalarOther where.ScalarSelf"
)
_LIKE = _overloads("empty_like.default full_like.default ones_like.default zeros_like.default")
_COUNTS = _overloads("arange.default arange.start arange.start_step")
_REDUCTIONS = _overloads(
    "all.default amax.default amin.default any.default mean.default mean.dim sum.default sum.dim_IntList "
    "var_mean.correction"
)
_VARIANCES = _overloads("var_mean.correction")
#: Operators whose kernels accept any layouts, and choose strides by the order of the arguments.
_IN_ORDER = _overloads(
    "add.Tensor bitwise_and.Tensor bitwise_or.Tensor div.Tensor eq.Tensor ge.Tensor gt.Tensor le.Tensor lt.Tensor "
    "maximum.default minimum.default mul.Tensor ne.Tensor sub.Tensor where.self"
)
#: Pointwise operators with more than one kernel.
_NOT_ONE_KERNEL = _overloads("angle.default clone.default ldexp.Tensor mvlgamma.default")
_MATRICES = {
    aten.mm.default: 2,
    aten.addmm.default: 2,
    aten.bmm.default: 3,
    aten.baddbmm.default: 3,
}


def common_fake(
    mode: FakeMode, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Return the fake result of a common operator on fakes without lazy bits; None if PyTorch's formula must decide."""
    tensors = list(tensors_in((args, kwargs)))
    devices = {fake.fake_device for fake in tensors if isinstance(fake, fake_tensor.FakeTensor)}
    if any(fake.is_conj() or fake.is_neg() for fake in tensors) or kwargs.get("pin_memory"):
        return None
    try:
        if func in _COMPOSITE:
            with mode:
                return func.decompose(*args, **kwargs)
        if kwargs.get("device") or not tensors:
            devices = {torch.device(kwargs.get("device") or "cpu")}
            kwargs = {**kwargs, "device": "meta"}
        if len(devices) != 1 or kwargs.get("layout") not in (None, torch.strided):
            return None
        if func in _BY_META_KERNEL or func in _BY_OUT:
            with fake_tensor.in_kernel_invocation_manager(mode):
                if func in _BY_OUT:
                    out = torch.empty(0, dtype=args[0].dtype, device="meta")
                    func, kwargs = _BY_OUT[func], {**kwargs, "out": out}
                result = func(*args, **kwargs)
        else:
            with real_dispatch():
                result = _laid_out(func, tensors, args, kwargs)
    except (RuntimeError, TypeError, IndexError):
        return None  # PyTorch's formula raises, or the CPU has no kernel
    (device,) = devices
    return map_tensors(lambda meta: fake_tensor.FakeTensor(mode, meta, device), result)


def _laid_out(
    func: OpOverload, tensors: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Any
) -> Any:
    """Return meta tensors with the layout of the operator's results, if its meta kernel does not tell."""
    if func in _MATRICES:
        return _product(_MATRICES[func], tensors)
    if func in _REDUCTIONS:
        return _reduced(func, *args, **kwargs)
    if func in _COUNTS:
        count = len(range(*args))
        dtype = kwargs.get("dtype") or torch.int64
        return torch.empty(count, dtype=dtype, device="meta") if count else None
    if func in _LIKE:
        like = torch.empty_strided(args[0].shape, args[0].stride(), device="meta")
        like = like.clone(memory_format=kwargs.get("memory_format"))
        return _of_dtype(like, kwargs.get("dtype") or args[0].dtype)
    distinct = {(tensor.shape, tensor.stride()) for tensor in tensors}
    is_ordered = len(distinct) == 1 or (func in _IN_ORDER and len(distinct) == 2)
    if func is aten.where.self and args[1].dtype != args[2].dtype:
        return None  # its kernel casts first
    if _is_pointwise(func) and is_ordered and not kwargs:
        return _pointwise(func, args)
    return None if kwargs else plain_results(func, args)


def _of_dtype(meta: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(meta.shape, meta.stride(), dtype=dtype, device="meta")


def _product(dims: int, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the product of matrices, or of batches of matrices, with an optional added tensor."""
    *added, left, right = tensors
    fits = left.dim() == right.dim() == dims and left.shape[-1] == right.shape[-2]
    if not fits or left.shape[:-2] != right.shape[:-2] or len({arg.dtype for arg in tensors}) > 1:
        return None
    shape = (*left.shape[:-1], right.shape[-1])
    result = torch.empty(shape, dtype=left.dtype, device="meta")
    for tensor in added:
        torch.empty(tensor.shape, device="meta").expand(result.shape)
    return result


def _reduced(func: OpOverload, reduced: torch.Tensor, *rest: Any, **options: Any) -> Any:
    """Return contiguous results; errors and dtypes come from the kernel on a tensor of at most one element."""
    if func in _VARIANCES and not (options.get("correction") == 0 and reduced.numel()):
        return None  # its kernel warns about so few elements
    dims, keepdim = (*rest, None, None)[:2]
    axes = {dim % reduced.dim() for dim in dims or range(reduced.dim())} if reduced.dim() else set()
    shape = [1 if i in axes else size for i, size in enumerate(reduced.shape)]
    if not options.get("keepdim", keepdim):
        shape = [size for i, size in enumerate(reduced.shape) if i not in axes]
    small = torch.zeros([min(size, 1) for size in reduced.shape], dtype=reduced.dtype)
    results = func(small, *rest, **options)
    return map_tensors(lambda value: torch.empty(shape, dtype=value.dtype, device="meta"), results)


def _is_pointwise(func: OpOverload) -> bool:
    returns = func._schema.returns
    is_function = len(returns) == 1 and returns[0].alias_info is None
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    is_one = torch.Tag.pointwise in func.tags and func not in _NOT_ONE_KERNEL
    return is_function and is_one and not is_random


def _pointwise(func: OpOverload, args: Sequence[Any]) -> torch.Tensor | None:
    """Return a pointwise result, with the dtype of the kernel on tensors without elements."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    empty = map_tensors(lambda tensor: torch.zeros((0,) * tensor.dim(), dtype=tensor.dtype), args)
    # in the order of the arguments, by which kernels choose strides
    layouts = list(dict.fromkeys([(tensor.shape, tensor.stride()) for tensor in tensors]))
    operands = [torch.empty_strided(*layout, device="meta") for layout in layouts]
    if func in TAKE_NUMBERS and len(tensors) == 1:
        operands.append(torch.empty((), device="meta"))
    dtype = func(*empty).dtype
    if any(tensor.is_complex() for tensor in tensors) and not dtype.is_complex:
        return None
    return _of_dtype(iterated(*operands), dtype)
