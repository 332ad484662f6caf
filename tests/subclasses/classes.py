"""Subclasses of tensors for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

_DISABLED = torch._C._disabled_torch_function_impl


class Pair(Tensor):
    """Two tensors of one layout, on which every operator runs alike."""

    a: Tensor
    b: Tensor

    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pair({self.a}, {self.b})"

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["a"], inner["b"])

    __torch_function__ = _DISABLED  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        first = tree_map(lambda value: value.a if isinstance(value, Pair) else value, (args, kwargs or {}))
        second = tree_map(lambda value: value.b if isinstance(value, Pair) else value, (args, kwargs or {}))
        results = func(*first[0], **first[1]), func(*second[0], **second[1])
        if func._schema.is_mutable:
            return args[0]
        return tree_map(lambda one, two: cls(one, two) if isinstance(one, Tensor) else one, *results)


class Scaled(Tensor):
    """A tensor that every operator reads multiplied by a factor, which is a constant."""

    plain: Tensor
    factor: Any

    @staticmethod
    def __new__(cls, inner: Tensor, factor: Any) -> Any:
        return Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner: Tensor, factor: Any) -> None:
        self.plain, self.factor = inner, factor

    def __tensor_flatten__(self) -> Any:
        return ["plain"], self.factor

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return cls(inner["plain"], context)

    __torch_function__ = _DISABLED  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        plain = tree_map(lambda v: v.plain * _number(v.factor) if isinstance(v, Scaled) else v, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


def _number(factor: Any) -> float:
    return float(factor[0] if isinstance(factor, list) else factor)


class Rounded(Scaled):
    """Rounds what operators read, so the gradient of its inner tensor is zero, and its own is not."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        plain = tree_map(lambda v: v.plain.round() if isinstance(v, Scaled) else v, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


class Named(Pair):
    """A pair with a function of its own for the product."""

    __torch_function__ = classmethod(lambda cls, func, kinds, args=(), kwargs=None: _function(func, args, kwargs or {}))  # type: ignore[assignment]


def _function(func: Any, args: Any, kwargs: Any) -> Any:
    if func is torch.matmul or func is Tensor.__matmul__:
        one, other = (value.a + value.b if isinstance(value, Pair) else value for value in args)
        return torch.mm(one, other)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def pair(*size: int, kind: type[Pair] = Pair, grad: bool = False) -> Any:
    """A pair of random numbers."""
    first = torch.randn(*size)
    return kind(first, first * 2 + 1).requires_grad_(grad)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the plain leaves of nested values, and the classes of tensors."""
    for leaf in tree_leaves(value):
        yield type(leaf)
        if hasattr(leaf, "__tensor_flatten__"):
            yield leaf.requires_grad
            yield from leaves([getattr(leaf, name) for name in leaf.__tensor_flatten__()[0]])
        else:
            yield leaf


def assert_alike(value: Any, expected: Any) -> None:
    """Assert that nested values are equal bit for bit, with their strides and classes."""
    for one, other in zip(leaves(value), leaves(expected), strict=True):
        if isinstance(one, Tensor):
            assert one.stride() == other.stride()
            assert one.requires_grad == other.requires_grad
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        else:
            assert one == other
