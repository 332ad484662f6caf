"""Proxies: the values that flow through a trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch

from switchgear import torch_private as internals

_FIXED = frozenset({int})
_SHORT_KINDS = {"float": "f", "bfloat": "bf", "complex": "c", "int": "i", "uint": "u", "bool": "b8"}


def short_name(dtype: torch.dtype) -> str:
    """`f32`, as printed traces show a dtype."""
    name = str(dtype).removeprefix("torch.")
    kind = name.rstrip("0123456789")
    return f"{_SHORT_KINDS.get(kind, kind)}{name.removeprefix(kind)}"


@dataclass(frozen=True, slots=True)
class NumberProxy:
    """A number of a trace: the size of its input `tensor` in dimension `dim`, or, without one, an input itself.

    With `~dim` in the place of `dim` it is the stride.
    """

    name: str
    tensor: str = ""
    dim: int = 0

    @property
    def source(self) -> str:
        """Where it is found, as Python."""
        measured = f"size({self.dim})" if self.dim >= 0 else f"stride({~self.dim})"
        return f"{self.tensor}.{measured}"

    def read(self, tensor: torch.Tensor) -> int:
        """What it is for this input tensor."""
        return tensor.size(self.dim) if self.dim >= 0 else tensor.stride(~self.dim)


class _Remembers:
    """Room for what follows from fields and is asked for often."""

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
        """Whether they are the same value of the same layout, by what is written: nothing is decided about sizes."""
        if not isinstance(other, TensorProxy):
            return NotImplemented
        alike = self.name == other.name and self.requires_grad == other.requires_grad
        return self is other or (alike and self.layout == other.layout)

    @property
    def layout(self) -> tuple[Any, ...]:
        """Return all metadata except `requires_grad`, hashable; symbolic numbers as text."""
        try:
            return self._layout
        except AttributeError:
            pass
        numbers = (*self.shape, *self.stride, self.storage_offset)
        fixed = _FIXED.issuperset(map(type, numbers))
        written = numbers if fixed else tuple([key_of(number) for number in numbers])
        layout = (len(self.shape), written, self.dtype, self.device, self.is_conj, self.is_neg)
        if fixed:  # what a symbolic number is written as depends on what is decided by then
            object.__setattr__(self, "_layout", layout)
        return layout

    def fresh(self, name: str) -> TensorProxy:
        """Return a new value of the same sizes and strides, without history."""
        own = {"storage_offset": 0, "is_conj": False, "is_neg": False}
        return changed_proxy(self, name=name, requires_grad=False, **own)

    def fake(self, mode: internals.FakeMode) -> torch.Tensor:
        """Return a fake tensor with this metadata."""
        layout = (
            *(self.shape, self.stride, self.dtype, self.device),
            *(self.storage_offset, self.is_conj, self.is_neg),
        )
        return internals.make_fake(mode, layout)

    @property
    def type_string(self) -> str:
        """Return the text of the printed trace: `cpu f32[2, 3]`."""
        return f"{self.device} {short_name(self.dtype)}{list(self.shape)}"

    @property
    def metadata(self) -> tuple[object, ...]:
        """Return all metadata except the name, hashable."""
        return (self.layout, self.requires_grad)

    @property
    def bytes(self) -> int:
        """Return the size in bytes; for symbolic sizes an estimate, by the current call."""
        return int(math.prod(map(hint_of, self.shape))) * self.dtype.itemsize

    @property
    def is_differentiable(self) -> bool:
        """Check whether the dtype can carry a gradient."""
        return self.dtype.is_floating_point or self.dtype.is_complex


Copied = TypeVar("Copied")


def copier(kind: type[Copied]) -> Callable[..., Copied]:
    """`dataclasses.replace` for a frozen class with slots, and not by its `__init__`, which takes passes much time.

    It takes a value and changes.
    """
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    # of the same layout, and not frozen, so that a copy is made in it and then becomes what it is
    scope: dict[str, Any] = {"Open": type("Open", kind.__bases__, {"__slots__": tuple(names)})}
    lines = [f"    made.{name} = value.{name}" for name in names]
    exec("\n".join(["def opened(value):", "    made = Open()", *lines, "    return made"]), scope)
    opened: Callable[[Copied], Any] = scope["opened"]

    def copied(value: Copied, **changes: object) -> Copied:
        made = opened(value)
        for name, new in changes.items():
            setattr(made, name, new)
        made.__class__ = kind
        return made  # type: ignore[no-any-return]

    return copied


#: A proxy with some fields changed.
changed_proxy = copier(TensorProxy)


def bytes_of(*values: TensorProxy) -> int:
    """The bytes that values take, each by itself; of symbolic sizes in the call at hand."""
    return sum(value.bytes for value in values)


def key_of(number: object) -> object:
    """A number that stands for itself, or a symbolic one as it is written: hashable."""
    return (
        (type(number), internals.python_of_number(number))
        if isinstance(number, internals.SYMBOLIC)
        else number
    )


def hint_of(number: object) -> Any:
    """A number, a symbolic one as it is in the call at hand: for estimates alone."""
    return internals.hint_of(number) if isinstance(number, internals.SYMBOLIC) else number


def is_symbolic(*values: TensorProxy) -> bool:
    """Whether a size, stride or offset of a value is symbolic."""
    return any(
        type(number) is not int
        for value in values
        for number in (*value.shape, *value.stride, value.storage_offset)
    )
