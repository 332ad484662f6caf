"""Private names of PyTorch: nested tensors of the jagged layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from switchgear_core.torch_private.fakes import is_fake
from switchgear_core.torch_private.modes import attention_backends, dispatch_state
from switchgear_core.torch_private.names import private

__all__ = [
    "ATTENTION",
    "CONSTRUCTOR_FILE",
    "GET_VALUES",
    "VIEW_FROM_JAGGED",
    "NestedTensor",
    "attention_backends",
    "equal_sizes",
    "numbered",
    "share_size",
    "viewed",
    "with_autograd",
]

#: The class of nested tensors of the jagged layout.
NestedTensor: Any = private("torch.nested._internal.nested_tensor.NestedTensor")
#: The file of its constructor.
CONSTRUCTOR_FILE: str = NestedTensor.__new__.__code__.co_filename
#: Operators: a nested tensor from its inner tensors, and its values.
VIEW_FROM_JAGGED: Any = private("torch._nested_view_from_jagged")
GET_VALUES: Any = private("torch._nested_get_values")
#: `scaled_dot_product_attention` as a function mode sees it.
ATTENTION: Any = private("torch._C._nn.scaled_dot_product_attention")

_size_of: Callable[[Any], torch.SymInt] = private("torch.nested._internal.nested_tensor.get_tensor_symint")
_SIZES: Any = private("torch.nested._internal.nested_tensor._tensor_symint_registry")
_dummy: Callable[[], torch.Tensor] = private("torch.nested._internal.nested_tensor._nt_view_dummy")
_NestedIntNode: Any = private("torch.nested._internal.nested_int.NestedIntNode")
with torch.inference_mode(False):
    _FIRST_STATE = dispatch_state()


def numbered(offsets: Any, original: Any = None) -> torch.Tensor:
    """Return offsets; fake ones get a size for their ragged dimension, as real ones have, or that of the original."""
    if is_fake(offsets) and offsets.nested_int_memo is None:
        new = torch.SymInt(_NestedIntNode(id(offsets), 1))  # real offsets count from 0
        offsets.nested_int_memo = new if original is None else _size_of(original)
    return offsets  # type: ignore[no-any-return]


def share_size(offsets: torch.Tensor, original: torch.Tensor) -> None:
    """Give offsets the size of the ragged dimension that others have."""
    _SIZES[offsets] = _size_of(original)


def equal_sizes(offsets: Sequence[torch.Tensor]) -> list[int]:
    """Return for each offsets the place of the first with an equal size of the ragged dimension."""
    sizes = [_size_of(tensor).node.nested_int() for tensor in offsets]
    return [*map(sizes.index, sizes)]


def viewed(values: torch.Tensor, offsets: Any, *cached: torch.Tensor | None) -> Any:
    """Return a nested tensor that is a view of values, with their history."""
    return VIEW_FROM_JAGGED(values, offsets, _dummy(), None, 1, *cached)


@contextlib.contextmanager
def with_autograd(is_on: bool) -> Iterator[None]:
    """Return a context for the code of an operator, which runs below autograd, to differentiate, or not."""
    state = torch._C._ForceDispatchKeyGuard(*_FIRST_STATE)
    with state, torch._C._EnableTorchFunction(), torch.set_grad_enabled(is_on):
        yield
