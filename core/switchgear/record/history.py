"""What autograd knows of a tensor's past."""

from __future__ import annotations

import torch

_UNSEEN = object()


def history_of(tensor: torch.Tensor) -> object:
    """What autograd knows of a tensor's past, for comparison by `same_history`."""
    if not tensor.requires_grad:
        return None
    try:
        return (tensor.grad_fn, tensor.output_nr)
    except (RuntimeError, IndexError):
        # a view made under no_grad whose base was written to, or that the base has no room for since it was reshaped:
        # autograd refuses to say, and saw nothing
        return _UNSEEN


def same_history(left: object, right: object) -> bool:
    """Whether two answers of `history_of` are the same past."""
    return left is _UNSEEN or right is _UNSEEN or left == right


def is_spoiled(tensor: torch.Tensor) -> bool:
    """Whether autograd refuses to speak of a tensor, a view whose base was written to."""
    return history_of(tensor) is _UNSEEN


def has_no_past(tensor: torch.Tensor) -> bool:
    """Whether autograd knows of none."""
    history = history_of(tensor)
    return history is None or (isinstance(history, tuple) and history[0] is None)


def version_of(tensor: torch.Tensor) -> int:
    """How often autograd has seen a tensor's memory written to; 0 for inference tensors, which do not say."""
    return 0 if tensor.is_inference() else tensor._version
