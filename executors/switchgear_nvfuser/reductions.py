"""Translations of reductions and scans; statistics and norms."""

from __future__ import annotations

from typing import Any

import torch

import switchgear as sg

from .definition import Value
from .translation import Translator, Untranslatable, dims_of, plain, translates, widened


def _reduced(t: Translator, name: str, value: Value, dims: list[int], keepdim: bool) -> Value:
    """Reduce along `dims`; without any, as for a tensor without dimensions, return the value itself."""
    return t.call(name, value, dims, keepdim) if dims else value


@translates("sum", "sum.dim_IntList")
def sum_(t: Translator, x: sg.TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    value = t.tensor(x)
    # nvFuser sums integers in 64 bits
    value = value if value.dtype is None or value.dtype.is_floating_point else t.cast(value, torch.int64)
    return _reduced(t, "sum", value, dims_of(dim, len(x.shape)), keepdim)


@translates("mean", "mean.dim")
def mean(t: Translator, x: sg.TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    dims = dims_of(dim, len(x.shape))
    return t.call("truediv", _reduced(t, "sum", t.tensor(x), dims, keepdim), t.count(x, dims))


def _extreme(name: str, operator: str) -> None:
    @translates(name)
    def translation(t: Translator, x: sg.TensorProxy, dim: Any = None, keepdim: bool = False) -> Value:
        if x.dtype == torch.bool:
            raise Untranslatable("of booleans")
        return _reduced(t, operator, t.tensor(x), dims_of(dim, len(x.shape)), keepdim)


for _name, _operator in (("amax", "max"), ("amin", "min"), ("max", "max"), ("min", "min")):
    _extreme(_name, _operator)


@translates("prod", "prod.dim_int")
def prod(t: Translator, x: sg.TensorProxy, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    if not t.compute.is_floating_point:
        raise Untranslatable("a product of integers")
    return _reduced(t, "prod", t.tensor(x), dims_of(dim, len(x.shape)), keepdim)


def _truth(name: str, operator: str) -> None:
    @translates(name, f"{name}.dim", f"{name}.dims")
    def translation(t: Translator, x: sg.TensorProxy, dim: Any = None, keepdim: bool = False) -> Value:
        count = t.cast(t.tensor(x, torch.bool), torch.int64)
        return t.cast(_reduced(t, operator, count, dims_of(dim, len(x.shape)), keepdim), torch.bool)


for _name, _operator in (("any", "max"), ("all", "min")):
    _truth(_name, _operator)


def _correction(argument: Any) -> int:
    correction = 1 if argument is None else argument
    if correction != int(correction):
        raise Untranslatable(f"with correction={argument!r}, no integer")
    return int(correction)


def _spread_dims(x: sg.TensorProxy, dim: Any) -> list[int]:
    dims = dims_of(dim, len(x.shape))
    if not dims:
        raise Untranslatable("of a tensor without dimensions")
    return dims


@translates("var.correction")
def var(t: Translator, x: sg.TensorProxy, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Value:
    return t.call("var", t.tensor(x), _spread_dims(x, dim), _correction(correction), keepdim)


@translates("std.correction")
def std(t: Translator, x: sg.TensorProxy, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Value:
    return t.call("sqrt", var(t, x, dim, correction=correction, keepdim=keepdim))


@translates("var_mean.correction")
def var_mean(
    t: Translator, x: sg.TensorProxy, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Value, ...]:
    arguments = t.tensor(x), _spread_dims(x, dim), _correction(correction), keepdim
    return t.definition.calls("var_mean", *arguments, dtypes=(t.compute, t.compute))


def _scan(name: str) -> None:
    @translates(name)
    def translation(t: Translator, x: sg.TensorProxy, dim: int, *, dtype: Any = None) -> Value:
        if not x.shape:
            return t.tensor(x)
        return t.call(name, t.tensor(x), dim % len(x.shape))


for _name in ("cumsum", "cumprod"):
    _scan(_name)


# Softmax and norms: in 32 bits from end to end; a decomposition would round in between.


def _exponentials(t: Translator, x: sg.TensorProxy, dim: int, dtype: torch.dtype) -> tuple[Value, Value, Value]:
    """Return the difference from the maximum, its exponential, and the sum of exponentials."""
    value = t.tensor(x, dtype)
    dims = dims_of(dim, len(x.shape))
    if not dims:
        raise Untranslatable("of a tensor without dimensions")
    rest = t.call("sub", value, t.call("max", value, dims, True))
    exponential = t.call("exp", rest)
    return rest, exponential, t.call("sum", exponential, dims, True)


@translates("_softmax")
def softmax(t: Translator, x: sg.TensorProxy, dim: int, half_to_float: bool) -> Value:
    _, exponential, total = _exponentials(t, x, dim, widened(x.dtype))
    return t.call("truediv", exponential, total)


@translates("_log_softmax")
def log_softmax(t: Translator, x: sg.TensorProxy, dim: int, half_to_float: bool) -> Value:
    rest, _, total = _exponentials(t, x, dim, widened(x.dtype))
    return t.call("sub", rest, t.call("log", total))


@translates("_softmax_backward_data")
def softmax_backward(t: Translator, grad: sg.TensorProxy, y: sg.TensorProxy, dim: int, input_dtype: Any) -> Value:
    dtype = widened(grad.dtype)
    weighted = t.call("mul", t.tensor(grad, dtype), t.tensor(y, dtype))
    total = _reduced(t, "sum", weighted, dims_of(dim, len(y.shape)), True)
    return t.call("sub", weighted, t.call("mul", t.tensor(y, dtype), total))


@translates("_log_softmax_backward_data")
def log_softmax_backward(t: Translator, grad: sg.TensorProxy, y: sg.TensorProxy, dim: int, input_dtype: Any) -> Value:
    dtype = widened(grad.dtype)
    grad_y = t.tensor(grad, dtype)
    total = _reduced(t, "sum", grad_y, dims_of(dim, len(y.shape)), True)
    return t.call("sub", grad_y, t.call("mul", t.call("exp", t.tensor(y, dtype)), total))


@translates("native_layer_norm")
def layer_norm(
    t: Translator, x: sg.TensorProxy, normalized_shape: Any, weight: Any, bias: Any, eps: float
) -> tuple[Value, Value, Value]:
    rank, dims = len(x.shape), _norm_dims(x, normalized_shape)
    value = t.tensor(x)
    spread, middle = t.definition.calls("var_mean", value, dims, 0, True, dtypes=(t.compute, t.compute))
    scale = t.call("rsqrt", t.call("add", spread, float(eps)))
    result = t.call("mul", t.call("sub", value, middle), scale)
    for name, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            result = t.call(name, result, t.raised(t.tensor(parameter), len(parameter.shape), rank))
    return result, middle, scale


def _norm_dims(x: sg.TensorProxy, normalized_shape: Any) -> list[int]:
    return list(range(len(x.shape) - len(normalized_shape), len(x.shape)))


@translates("native_layer_norm_backward")
def layer_norm_backward(
    t: Translator,
    grad: sg.TensorProxy,
    x: sg.TensorProxy,
    normalized_shape: Any,
    mean: sg.TensorProxy,
    rstd: sg.TensorProxy,
    weight: Any,
    bias: Any,
    output_mask: Any,
) -> tuple[Value, ...]:
    rank, dims = len(x.shape), _norm_dims(x, normalized_shape)
    dtype = widened(x.dtype)
    grad_y, scale = t.tensor(grad, dtype), t.tensor(rstd, dtype)
    normal = t.call("mul", t.call("sub", t.tensor(x, dtype), t.tensor(mean, dtype)), scale)
    gradients = []
    if output_mask[0]:
        inner = grad_y if weight is None else t.call("mul", grad_y, t.raised(t.tensor(weight, dtype), len(dims), rank))
        count = t.count(x, dims)
        first = t.call("truediv", t.call("sum", inner, dims, True), count)
        second = t.call("truediv", t.call("sum", t.call("mul", inner, normal), dims, True), count)
        rest = t.call("sub", t.call("sub", inner, first), t.call("mul", normal, second))
        gradients.append(t.call("mul", rest, scale))
    outer = list(range(rank - len(dims)))
    if output_mask[1]:
        gradients.append(_reduced(t, "sum", t.call("mul", grad_y, normal), outer, False))
    if output_mask[2]:
        gradients.append(_reduced(t, "sum", grad_y, outer, False))
    return tuple(gradients)


@translates("_fused_rms_norm")
def rms_norm(
    t: Translator, x: sg.TensorProxy, normalized_shape: Any, weight: Any, eps: float | None
) -> tuple[Value, Value]:
    dims, value = _norm_dims(x, normalized_shape), t.tensor(x)
    square = t.call("truediv", t.call("sum", t.call("mul", value, value), dims, True), t.count(x, dims))
    least = torch.finfo(t.compute).eps if eps is None else float(eps)
    scale = t.call("rsqrt", t.call("add", square, least))
    result = t.call("mul", value, scale)
    if weight is not None:
        result = t.call("mul", result, t.raised(t.tensor(weight), len(weight.shape), len(x.shape)))
    return result, scale


@translates("_fused_rms_norm_backward")
def rms_norm_backward(
    t: Translator,
    grad: sg.TensorProxy,
    x: sg.TensorProxy,
    normalized_shape: Any,
    rstd: sg.TensorProxy,
    weight: Any,
    output_mask: Any,
) -> tuple[Value, ...]:
    rank, dims = len(x.shape), _norm_dims(x, normalized_shape)
    dtype = widened(x.dtype)
    grad_y, scale = t.tensor(grad, dtype), t.tensor(rstd, dtype)
    normal = t.call("mul", t.tensor(x, dtype), scale)
    gradients = []
    if output_mask[0]:
        inner = grad_y if weight is None else t.call("mul", grad_y, t.raised(t.tensor(weight, dtype), len(dims), rank))
        total = t.call("sum", t.call("mul", inner, normal), dims, True)
        second = t.call("truediv", total, t.count(x, dims))
        gradients.append(t.call("mul", t.call("sub", inner, t.call("mul", normal, second)), scale))
    if output_mask[1]:
        outer = list(range(rank - len(dims)))
        gradients.append(_reduced(t, "sum", t.call("mul", grad_y, normal), outer, False))
    return tuple(gradients)


@translates("linalg_vector_norm")
def vector_norm(
    t: Translator, x: sg.TensorProxy, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Value:
    value, dims = t.tensor(x), dims_of(dim, len(x.shape))
    if ord == 1:
        return _reduced(t, "sum", t.call("abs", value), dims, keepdim)
    if ord == 2:
        return t.call("sqrt", _reduced(t, "sum", t.call("mul", value, value), dims, keepdim))
    if ord == float("inf"):
        return _reduced(t, "max", t.call("abs", value), dims, keepdim)
    plain({"ord": ord})
    raise Untranslatable("with ord=0")
