"""Translations of operators that compute element by element."""

from __future__ import annotations

import math
from typing import Any

import torch

import switchgear as sg

from .definition import Value
from .translation import Translator, Untranslatable, number, promoted, translates, widened

#: nvFuser operators with PyTorch's name, from one tensor to a floating-point tensor.
FLOATING = (
    *(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "cos",
        "cosh",
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "exp2",
        "expm1",
    ),
    *("lgamma", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "silu", "sin", "sinh", "sqrt"),
    *("tan", "tanh"),
)
#: Operators with the dtype of their input, and the identity on integers.
ROUNDING = ("ceil", "floor", "round", "trunc")
#: Operators that return a truth value for each element.
TELLING = ("isinf", "isnan", "isneginf", "isposinf", "signbit")
COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
LOGICAL = ("logical_and", "logical_or")
BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")
SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")


def _floating(name: str) -> None:
    @translates(name)
    def translation(t: Translator, x: sg.TensorProxy) -> Value:
        return t.call(name, t.tensor(x))


def _rounding(name: str) -> None:
    @translates(name)
    def translation(t: Translator, x: sg.TensorProxy) -> Value:
        return t.call(name, t.tensor(x)) if x.dtype.is_floating_point else t.tensor(x)


def _telling(name: str) -> None:
    @translates(name)
    def translation(t: Translator, x: sg.TensorProxy) -> Value:
        if not x.dtype.is_floating_point:
            raise Untranslatable("of integers")
        return t.call(name, t.tensor(x, widened(x.dtype)), dtype=torch.bool)


def _comparison(name: str) -> None:
    @translates(f"{name}.Tensor", f"{name}.Scalar")
    def translation(t: Translator, x: sg.TensorProxy, y: Any) -> Value:
        dtype = promoted(x, y)
        return t.call(name, t.operand(x, dtype), t.operand(y, dtype), dtype=torch.bool)


def _logical(name: str) -> None:
    @translates(name)
    def translation(t: Translator, x: sg.TensorProxy, y: sg.TensorProxy) -> Value:
        return t.call(name, t.operand(x, torch.bool), t.operand(y, torch.bool))


def _bitwise(name: str) -> None:
    @translates(f"{name}.Tensor", f"{name}.Scalar")
    def translation(t: Translator, x: sg.TensorProxy, y: Any) -> Value:
        if t.compute == torch.bool:
            logical = {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "ne"}[name]
            return t.call(logical, t.operand(x), t.operand(y), dtype=torch.bool)
        return t.call(name, t.operand(x), t.operand(y))


for _name in FLOATING:
    _floating(_name)
for _name in ROUNDING:
    _rounding(_name)
for _name in TELLING:
    _telling(_name)
for _name in COMPARISONS:
    _comparison(_name)
for _name in LOGICAL:
    _logical(_name)
for _name in BITWISE:
    _bitwise(_name)


# One tensor.


@translates("neg")
def neg(t: Translator, x: sg.TensorProxy) -> Value:
    return t.call("neg", t.tensor(x))


@translates("abs")
def absolute(t: Translator, x: sg.TensorProxy) -> Value:
    return t.call("abs", t.tensor(x))


@translates("sign", "sgn")
def sign(t: Translator, x: sg.TensorProxy) -> Value:
    value = t.tensor(x)
    return value if x.dtype == torch.bool else _sign(t, value)


def _sign(t: Translator, value: Value) -> Value:
    """Return the sign by comparisons: like PyTorch's sign, a difference of truth values is 0 for nan."""
    assert value.dtype is not None
    zero = number(0, value.dtype)
    above, below = (t.call(name, value, zero, dtype=torch.bool) for name in ("gt", "lt"))
    return t.call("sub", t.cast(above, value.dtype), t.cast(below, value.dtype))


@translates("relu")
def relu(t: Translator, x: sg.TensorProxy) -> Value:
    return _clamped(t, t.tensor(x), "le", 0)


def _clamped(t: Translator, value: Value, comparison: str, bound: float) -> Value:
    """Return `bound` where the comparison with it holds, else the value, so that nan stays."""
    assert value.dtype is not None
    limit = number(bound, value.dtype)
    return _where(t, t.call(comparison, value, limit, dtype=torch.bool), limit, value)


def _where(t: Translator, condition: Value, if_true: Value | float, if_false: Value | float) -> Value:
    dtype = next((value.dtype for value in (if_true, if_false) if isinstance(value, Value)), None)
    return t.call("where", condition, if_true, if_false, dtype=dtype or t.compute)


@translates("frac")
def frac(t: Translator, x: sg.TensorProxy) -> Value:
    value = t.tensor(x)
    return t.call("sub", value, t.call("trunc", value))


@translates("logical_not")
def logical_not(t: Translator, x: sg.TensorProxy) -> Value:
    return t.call("logical_not", t.tensor(x, torch.bool))


@translates("bitwise_not")
def bitwise_not(t: Translator, x: sg.TensorProxy) -> Value:
    return t.call("logical_not" if x.dtype == torch.bool else "bitwise_not", t.tensor(x))


@translates("alias", "detach", "lift_fresh", "clone")
def same(t: Translator, x: sg.TensorProxy, *, memory_format: Any = None) -> Value:
    return t.tensor(x, x.dtype)


@translates("_to_copy")
def to_copy(t: Translator, x: sg.TensorProxy, **options: Any) -> Value:
    # `lowered` ensures a single device per call
    return t.tensor(x, t.output.dtype)


# Arithmetic of two.


def _arithmetic(t: Translator, name: str, x: Any, y: Any) -> Value:
    if t.compute == torch.bool:
        raise Untranslatable("arithmetic of booleans")
    return t.call(name, t.operand(x), t.operand(y))


def _scaled(t: Translator, operand: Any, factor: float) -> Any:
    value = t.operand(operand)
    if factor == 1:
        return value
    scale = number(factor, t.compute)
    return t.call("mul", value, scale) if isinstance(value, Value) else value * scale


@translates("add.Tensor", "add.Scalar")
def add(t: Translator, x: Any, y: Any, alpha: float = 1) -> Value:
    return _combined(t, "add", x, y, alpha)


@translates("sub.Tensor", "sub.Scalar")
def sub(t: Translator, x: Any, y: Any, alpha: float = 1) -> Value:
    return _combined(t, "sub", x, y, alpha)


@translates("rsub.Tensor", "rsub.Scalar")
def rsub(t: Translator, x: Any, y: Any, alpha: float = 1) -> Value:
    if t.compute == torch.bool:
        raise Untranslatable("arithmetic of booleans")
    return t.call("sub", t.operand(y), _scaled(t, x, alpha))


def _combined(t: Translator, name: str, x: Any, y: Any, alpha: float) -> Value:
    if t.compute == torch.bool:
        raise Untranslatable("arithmetic of booleans")
    return t.call(name, t.operand(x), _scaled(t, y, alpha))


@translates("mul.Tensor", "mul.Scalar")
def mul(t: Translator, x: Any, y: Any) -> Value:
    return _arithmetic(t, "mul", x, y)


@translates("div.Tensor", "div.Scalar")
def div(t: Translator, x: Any, y: Any) -> Value:
    return _arithmetic(t, "truediv", x, y)


@translates("div.Tensor_mode", "div.Scalar_mode")
def div_rounded(t: Translator, x: Any, y: Any, *, rounding_mode: str | None) -> Value:
    if rounding_mode is None:
        return div(t, x, y)
    if not t.compute.is_floating_point:
        raise Untranslatable("integers divided by zero are not PyTorch's")
    if rounding_mode == "floor":
        # PyTorch corrects the quotient by the remainder, unlike rounding down
        raise Untranslatable("with rounding_mode='floor'")
    if t.output.dtype != t.compute:
        raise Untranslatable("a quotient of 16 bits is rounded twice")
    return t.call("trunc", _arithmetic(t, "truediv", x, y))


def _remainder(name: str) -> None:
    @translates(f"{name}.Tensor", f"{name}.Scalar")
    def translation(t: Translator, x: Any, y: Any) -> Value:
        if not t.compute.is_floating_point:
            raise Untranslatable("integers divided by zero are not PyTorch's")
        return _arithmetic(t, name, x, y)


for _name in ("fmod", "remainder"):
    _remainder(_name)


@translates("atan2")
def atan2(t: Translator, x: Any, y: Any) -> Value:
    return _arithmetic(t, "atan2", x, y)


@translates("nextafter")
def nextafter(t: Translator, x: sg.TensorProxy, y: sg.TensorProxy) -> Value:
    if t.output.dtype != t.compute:
        raise Untranslatable("nvFuser has no next number of 16 bits")
    return _arithmetic(t, "nextafter", x, y)


@translates("gcd")
def gcd(t: Translator, x: sg.TensorProxy, y: sg.TensorProxy) -> Value:
    return _arithmetic(t, "gcd", x, y)


@translates("maximum")
def maximum(t: Translator, x: Any, y: Any) -> Value:
    return _arithmetic(t, "maximum", x, y)


@translates("minimum")
def minimum(t: Translator, x: Any, y: Any) -> Value:
    return _arithmetic(t, "minimum", x, y)


def _shift(name: str) -> None:
    @translates(f"{name}.Tensor")
    def translation(t: Translator, x: Any, y: Any) -> Value:
        return t.call(name, t.operand(x), t.operand(y))


for _name in SHIFTS:
    _shift(_name)


@translates("pow.Tensor_Scalar")
def pow_of_number(t: Translator, x: sg.TensorProxy, exponent: float) -> Value:
    value = t.tensor(x)
    if exponent == 1:
        return value
    if exponent in (2, 3):
        square = t.call("mul", value, value)
        return square if exponent == 2 else t.call("mul", square, value)
    if not t.compute.is_floating_point:
        raise Untranslatable("integers to a power other than 1, 2 and 3")
    if exponent in (0.5, -0.5):
        return t.call("sqrt" if exponent > 0 else "rsqrt", value)
    if exponent == -1:
        return t.call("reciprocal", value)
    return t.call("pow", value, number(exponent, t.compute))


@translates("pow.Tensor_Tensor", "pow.Scalar")
def power(t: Translator, x: Any, exponent: Any) -> Value:
    if not t.compute.is_floating_point:
        raise Untranslatable("integers to a power other than 1, 2 and 3")
    return _arithmetic(t, "pow", x, exponent)


# Three and more.


@translates("where.self")
def where(t: Translator, condition: sg.TensorProxy, x: sg.TensorProxy, y: sg.TensorProxy) -> Value:
    return t.call("where", t.operand(condition, torch.bool), t.operand(x), t.operand(y), dtype=t.compute)


@translates("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(t: Translator, x: sg.TensorProxy, mask: sg.TensorProxy, value: Any) -> Value:
    return t.call("where", t.operand(mask, torch.bool), t.operand(value), t.operand(x), dtype=t.compute)


@translates("addcmul")
def addcmul(t: Translator, x: Any, y: Any, z: Any, *, value: float = 1) -> Value:
    return t.call("add", t.operand(x), t.call("mul", _scaled(t, y, value), t.operand(z)))


@translates("addcdiv")
def addcdiv(t: Translator, x: Any, y: Any, z: Any, *, value: float = 1) -> Value:
    return t.call("add", t.operand(x), t.call("truediv", _scaled(t, y, value), t.operand(z)))


@translates("lerp.Scalar", "lerp.Tensor")
def lerp(t: Translator, start: sg.TensorProxy, end: sg.TensorProxy, weight: Any) -> Value:
    return t.call("lerp", t.operand(start), t.operand(end), t.operand(weight))


@translates("clamp", "clamp.Tensor", "hardtanh")
def clamp(t: Translator, x: sg.TensorProxy, low: Any = None, high: Any = None, **keywords: Any) -> Value:
    low, high = (keywords.get(name, bound) for name, bound in (("min", low), ("max", high)))
    value = t.operand(x)
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            value = t.call(name, value, t.operand(bound))
    assert isinstance(value, Value)
    return value


@translates("clamp_min", "clamp_min.Tensor")
def clamp_min(t: Translator, x: sg.TensorProxy, low: Any) -> Value:
    return t.call("maximum", t.operand(x), t.operand(low))


@translates("clamp_max", "clamp_max.Tensor")
def clamp_max(t: Translator, x: sg.TensorProxy, high: Any) -> Value:
    return t.call("minimum", t.operand(x), t.operand(high))


@translates("threshold")
def threshold(t: Translator, x: sg.TensorProxy, limit: float, value: float) -> Value:
    data = t.tensor(x)
    return _where(t, t.call("le", data, number(limit, t.compute), dtype=torch.bool), number(value, t.compute), data)


@translates("threshold_backward")
def threshold_backward(t: Translator, grad: sg.TensorProxy, x: sg.TensorProxy, limit: float) -> Value:
    operand = t.operand(x)
    below = t.call("le", operand, number(limit, t.compute), dtype=torch.bool)
    return _where(t, below, number(0, t.compute), t.operand(grad))


# In 32 bits from end to end; a decomposition would round in between.


@translates("gelu")
def gelu(t: Translator, x: sg.TensorProxy, *, approximate: str = "none") -> Value:
    value = t.tensor(x)
    return t.call("mul", t.call("mul", value, 0.5), t.call("add", _gelu_inner(t, value, approximate), 1.0))


def _gelu_inner(t: Translator, value: Value, approximate: str) -> Value:
    if approximate == "none":
        return t.call("erf", t.call("mul", value, math.sqrt(0.5)))
    cube = t.call("mul", t.call("mul", value, value), value)
    return t.call("tanh", t.call("mul", t.call("add", value, t.call("mul", cube, 0.044715)), math.sqrt(2 / math.pi)))


@translates("gelu_backward")
def gelu_backward(t: Translator, grad: sg.TensorProxy, x: sg.TensorProxy, *, approximate: str = "none") -> Value:
    value = t.tensor(x)
    inner = _gelu_inner(t, value, approximate)
    half = t.call("mul", t.call("add", inner, 1.0), 0.5)
    square = t.call("mul", value, value)
    if approximate == "none":
        density = t.call("mul", t.call("exp", t.call("mul", square, -0.5)), 1 / math.sqrt(2 * math.pi))
    else:
        slope = t.call("mul", t.call("add", t.call("mul", square, 3 * 0.044715), 1.0), math.sqrt(2 / math.pi))
        rest = t.call("sub", 1.0, t.call("mul", inner, inner))
        density = t.call("mul", t.call("mul", slope, rest), 0.5)
    return t.call("mul", t.tensor(grad), t.call("add", half, t.call("mul", value, density)))


@translates("silu_backward")
def silu_backward(t: Translator, grad: sg.TensorProxy, x: sg.TensorProxy) -> Value:
    value = t.tensor(x)
    sigmoid = t.call("sigmoid", value)
    rest = t.call("mul", value, t.call("sub", 1.0, sigmoid))
    return t.call("mul", t.tensor(grad), t.call("mul", sigmoid, t.call("add", rest, 1.0)))


@translates("sigmoid_backward")
def sigmoid_backward(t: Translator, grad: sg.TensorProxy, y: sg.TensorProxy) -> Value:
    value = t.tensor(y)
    return t.call("mul", t.tensor(grad), t.call("mul", value, t.call("sub", 1.0, value)))


@translates("tanh_backward")
def tanh_backward(t: Translator, grad: sg.TensorProxy, y: sg.TensorProxy) -> Value:
    value = t.tensor(y)
    return t.call("mul", t.tensor(grad), t.call("sub", 1.0, t.call("mul", value, value)))
