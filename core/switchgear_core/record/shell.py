"""Shells: tensor subclasses that PyTorch takes apart into inner tensors, and rebuilds around others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import Unsupported
from switchgear_core.torch_private import pytree


@dataclass(frozen=True, slots=True)
class Shell:
    """A tensor of a subclass without its inner tensors.

    `names` are the attributes of the inner tensors. `metadata` is of the whole: dtype, device, layout, requires_grad.
    """

    kind: type[Any]
    names: tuple[str, ...]
    context: object = field(hash=False)
    size: torch.Size
    stride: tuple[int, ...]
    metadata: tuple[object, ...]

    def around(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a tensor of the subclass with other inner tensors."""
        inner = dict(zip(self.names, parts, strict=True))
        tensor: torch.Tensor = self.kind.__tensor_unflatten__(
            inner, self.context, self.size, self.stride
        )
        with internals.DisableTorchFunction():
            return tensor.requires_grad_() if self.metadata[-1] else tensor

    def fits(self, tensor: Any) -> bool:
        """Check whether a tensor differs at most in its inner tensors."""
        return type(tensor) is self.kind and shell_of(tensor) == self


def has_shell(value: Any) -> bool:
    """Check whether a value is a tensor of a subclass with inner tensors."""
    kind = type(value)
    is_apart = hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")
    return is_apart and issubclass(kind, torch.Tensor)


def shell_of(tensor: Any) -> Shell:
    """Return the shell of a tensor of a subclass."""
    names, context = tensor.__tensor_flatten__()
    with internals.DisableTorchFunction():
        metadata = tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad
        size, stride = tensor.size(), tensor.stride()
    return Shell(type(tensor), tuple(names), context, size, stride, metadata)


def shelled_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors with shells in a nested value."""
    return (leaf for leaf in pytree.tree_flatten(value)[0] if has_shell(leaf))


#: The attributes of tensors with shells.
Attributes = list[tuple[torch.Tensor, dict[str, object]]]


def attributes_of(value: object) -> Attributes:
    """Return the attributes of the tensors with shells in a nested value."""
    return [(tensor, {**vars(tensor)}) for tensor in shelled_in(value)]


def refuse_changes(before: Attributes, result: object) -> None:
    """Refuse a function that changes or returns a tensor with a shell, which stands for another one of the user."""
    for tensor, attributes in before:
        after = vars(tensor)
        if after.keys() != attributes.keys() or any(after[k] is not v for k, v in attributes.items()):
            raise Unsupported(
                f"the function assigns an attribute of a {type(tensor).__qualname__}; make a new tensor",
                splits=False,
            )
    ids = {id(tensor) for tensor, _ in before}
    if any(id(tensor) in ids for tensor in shelled_in(result)):
        raise Unsupported(
            "the function returns a tensor of a subclass that it gets from outside; return a new one", splits=False
        )
