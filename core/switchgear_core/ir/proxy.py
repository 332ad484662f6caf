"""Proxies: the values that flow through a trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch

from switchgear_core import torch_private as internals

_FIXED = frozenset({int})
_SHORT_KINDS = {"float": "f", "bfloat": "bf", "complex": "c", "int": "i", "uint": "u", "bool": "b8"}


def short_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in printed traces, such as `f32`."""
    name = str(dtype).removeprefix("torch.")
    kind = name.rstrip("0123456789")
    return f"{_SHORT_KINDS.get(kind, kind)}{name.removeprefix(kind)}"


@dataclass(frozen=True, slots=True)
class NumberProxy:
    """A number of a trace: the size of its input `tensor` in dimension `dim`, or, without a tensor, an input itself.

    `~dim` in place of `dim` means the stride.
    """

    name: str
    tensor: str = ""
    dim: int = 0

    @property
    def source(self) -> str:
        """The Python expression for the number."""
        measured = f"size({self.dim})" if self.dim >= 0 else f"stride({~self.dim})"
        return f"{self.tensor}.{measured}"

    def read(self, tensor: torch.Tensor) -> int:
        """Read the number from an input.

        Args:
            tensor: the input that has the number as a size or stride.

        Returns:
            The number, in elements.
        """
        return tensor.size(self.dim) if self.dim >= 0 else tensor.stride(~self.dim)


class _Remembers:
    """Slots for values that are computed from fields and read often."""

    __slots__ = ("_layout",)
    _layout: tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TensorProxy(_Remembers):
    """Tensor of a trace: a name and metadata, without data.

    Attributes:
        shape: sizes, in elements; symbolic numbers where sizes are dynamic.
        stride: strides, in elements; likewise.
        requires_grad: autograd's answer at this point of the program.
        is_conj: PyTorch's lazy bit of conjugation.
        is_neg: PyTorch's lazy bit of negation.
    """

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    storage_offset: int = 0
    is_conj: bool = False
    is_neg: bool = False

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        """Check whether both are the same value with the same layout, as text: nothing is decided about sizes."""
        if not isinstance(other, TensorProxy):
            return NotImplemented
        alike = self.name == other.name and self.requires_grad == other.requires_grad
        return self is other or (alike and self.layout == other.layout)

    @property
    def layout(self) -> tuple[Any, ...]:
        """All metadata except `requires_grad`, hashable; symbolic numbers as text."""
        try:
            return self._layout
        except AttributeError:
            pass
        numbers = (*self.shape, *self.stride, self.storage_offset)
        fixed = _FIXED.issuperset(map(type, numbers))
        parts = numbers if fixed else tuple([key_of(number) for number in numbers])
        layout = (len(self.shape), parts, self.dtype, self.device, self.is_conj, self.is_neg)
        if fixed:  # the text of a symbolic number depends on earlier decisions
            object.__setattr__(self, "_layout", layout)
        return layout

    def fresh(self, name: str) -> TensorProxy:
        """Make a value with the same sizes and strides, without history.

        Args:
            name: the name of the new value.

        Returns:
            The value: it does not require grad, and its storage offset is 0.
        """
        defaults = {"storage_offset": 0, "is_conj": False, "is_neg": False}
        return changed_proxy(self, name=name, requires_grad=False, **defaults)

    def fake(self, mode: internals.FakeMode) -> torch.Tensor:
        """Make a fake tensor with the given metadata.

        Args:
            mode: the fake mode of the tensor.

        Returns:
            The fake tensor.
        """
        layout = (
            *(self.shape, self.stride, self.dtype, self.device),
            *(self.storage_offset, self.is_conj, self.is_neg),
        )
        return internals.make_fake(mode, layout)

    @property
    def type_string(self) -> str:
        """The type in the printed trace: `cpu f32[2, 3]`."""
        return f"{self.device} {short_name(self.dtype)}{list(self.shape)}"

    @property
    def metadata(self) -> tuple[object, ...]:
        """All metadata except the name, hashable."""
        return (self.layout, self.requires_grad)

    @property
    def bytes(self) -> int:
        """The size in bytes; for symbolic sizes an estimate, by the current call."""
        return int(math.prod(map(hint_of, self.shape))) * self.dtype.itemsize

    @property
    def is_differentiable(self) -> bool:
        """Whether the dtype can carry a gradient."""
        return self.dtype.is_floating_point or self.dtype.is_complex


Copied = TypeVar("Copied")


def copier(kind: type[Copied]) -> Callable[..., Copied]:
    """Return a faster `dataclasses.replace(value, **changes)` for a frozen class with slots, without its `__init__`.

    Copies by `__init__` would take much of the time of passes.
    """
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    # a class with the same layout, not frozen: copies are made in it, and then change their class
    scope: dict[str, Any] = {"Open": type("Open", kind.__bases__, {"__slots__": tuple(names)})}
    lines = [f"    copy.{name} = value.{name}" for name in names]
    exec("\n".join(["def opened(value):", "    copy = Open()", *lines, "    return copy"]), scope)
    opened: Callable[[Copied], Any] = scope["opened"]

    def copied(value: Copied, **changes: object) -> Copied:
        copy = opened(value)
        for name, new in changes.items():
            setattr(copy, name, new)
        copy.__class__ = kind
        return copy  # type: ignore[no-any-return]

    return copied


#: Return a copy of a proxy with some fields changed.
changed_proxy = copier(TensorProxy)


def bytes_of(*values: TensorProxy) -> int:
    """Return the bytes of values, without sharing; symbolic sizes count as in the captured call."""
    return sum(value.bytes for value in values)


def is_dense(proxy: TensorProxy) -> bool:
    """Check whether a layout has neither holes nor repeats, so that a sum has the layout of its terms."""
    step = 1
    pairs = zip(proxy.shape, proxy.stride, strict=True)
    for size, stride in sorted(pairs, key=lambda pair: pair[1]):
        if size != 1 and stride != step:
            return False
        step *= max(size, 1)
    return True


def key_of(number: object) -> object:
    """Return a number, or the text of a symbolic number: hashable."""
    return (
        (type(number), internals.python_of_number(number))
        if isinstance(number, internals.SYMBOLIC)
        else number
    )


def hint_of(number: object) -> Any:
    """Return a number, or a symbolic number's value in the captured call: for estimates alone."""
    return internals.hint_of(number) if isinstance(number, internals.SYMBOLIC) else number


def is_symbolic(*values: TensorProxy) -> bool:
    """Check whether a size, stride or offset of a value is symbolic."""
    return any(
        type(number) is not int
        for value in values
        for number in (*value.shape, *value.stride, value.storage_offset)
    )
