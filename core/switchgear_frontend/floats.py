"""Floats that change between calls: a float to the function, in the trace an input tensor of a single element.

Sums, products and quotients are computed in float64, as Python does; comparisons are branches on the data of the call.
Any other use of the number refuses the capture, which is then repeated with the float as a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from switchgear_core.errors import Unsupported

_ASKED = "a float that changes between calls is asked for its value ({})"


class _Asked:
    """The node of such a float: PyTorch reads its value from here, which is refused."""

    def __getattr__(self, name: str) -> NoReturn:
        raise Unsupported(_ASKED.format(name))


def _refuser(name: str) -> Callable[..., NoReturn]:
    def method(self: Float, *args: object) -> NoReturn:
        raise Unsupported(_ASKED.format(name))

    return method


def _binary(function: Callable[..., torch.Tensor], *, swapped: bool = False) -> Callable[..., Any]:
    def method(self: Float, other: object) -> Any:
        tensor = _tensor(other)
        if tensor is None:
            return NotImplemented
        pair = (tensor, self.tensor) if swapped else (self.tensor, tensor)
        if function is torch.div and (self if swapped else other) == 0.0:
            raise ZeroDivisionError("float division by zero")
        return Float(function(*pair))

    return method


def _compared(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def method(self: Float, other: object) -> Any:
        tensor = _tensor(other)
        return NotImplemented if tensor is None else bool(function(self.tensor, tensor))

    return method


def _tensor(value: object) -> torch.Tensor | None:
    """Return the tensor of a number in the trace, None for other objects."""
    if isinstance(value, Float):
        return value.tensor
    if isinstance(value, (int, float)):
        return torch.tensor(float(value), dtype=torch.float64, device="cpu")
    return None


_OF_FLOATS = frozenset(dir(float))


class Float(torch.SymFloat):
    """A float of the call, held by `tensor` in the trace."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.node = _Asked()
        self.tensor = tensor

    __add__ = __radd__ = _binary(torch.add)
    __sub__, __rsub__ = _binary(torch.sub), _binary(torch.sub, swapped=True)
    __mul__ = __rmul__ = _binary(torch.mul)
    __truediv__, __rtruediv__ = _binary(torch.div), _binary(torch.div, swapped=True)
    __lt__, __le__ = _compared(torch.lt), _compared(torch.le)
    __gt__, __ge__ = _compared(torch.gt), _compared(torch.ge)
    __eq__, __ne__ = _compared(torch.eq), _compared(torch.ne)

    def __neg__(self) -> Float:
        return Float(self.tensor.neg())

    def __pos__(self) -> Float:
        return self

    def __abs__(self) -> Float:
        return Float(self.tensor.abs())

    def __bool__(self) -> bool:
        return self != 0.0  # type: ignore[no-any-return]

    __float__, __int__, __index__ = _refuser("float"), _refuser("int"), _refuser("index")
    __trunc__, __floor__, __ceil__ = _refuser("trunc"), _refuser("floor"), _refuser("ceil")
    __round__, __hash__, __repr__ = _refuser("round"), _refuser("hash"), _refuser("repr")
    __pow__ = __rpow__ = _refuser("power")
    __mod__ = __rmod__ = __divmod__ = __rdivmod__ = _refuser("remainder")
    __floordiv__ = __rfloordiv__ = _refuser("quotient")

    def __getattr__(self, name: str) -> NoReturn:
        if name in _OF_FLOATS:
            raise Unsupported(_ASKED.format(name))
        raise AttributeError(f"'float' object has no attribute {name!r}")


def operand(number: Float, other: torch.Tensor) -> torch.Tensor:
    """Return a tensor that gives arithmetic with `other` the bits and the dtype of arithmetic with the number.

    Raises:
        Unsupported: PyTorch computes differently with a tensor of a single element.
    """
    if other.dtype in (torch.float32, torch.float64):
        return number.tensor.to(other.dtype)
    if not other.dtype.is_floating_point and not other.dtype.is_complex:
        return number.tensor.to(torch.get_default_dtype())
    if other.dtype.is_complex or not other.dim():
        raise Unsupported(f"a float that changes between calls meets a tensor of {other.dtype}")
    return (
        number.tensor
    )  # kernels of lower precision convert it once, to the dtype of their computation
