"""Autograd history of tensors."""

from __future__ import annotations

import torch

_UNSEEN = object()


def history_of(tensor: torch.Tensor) -> object:
    """Return the autograd history of a tensor, for comparison by `same_history`."""
    if not tensor.requires_grad:
        return None
    try:
        return (tensor.grad_fn, tensor.output_nr)
    except (RuntimeError, IndexError):
        # autograd refuses to answer, and saw nothing: a view made under no_grad whose base was written to, or whose
        # base has become too small by a reshape in place
        return _UNSEEN


def same_history(left: object, right: object) -> bool:
    """Check whether two results of `history_of` are the same history."""
    return left is _UNSEEN or right is _UNSEEN or left == right


def is_spoiled(tensor: torch.Tensor) -> bool:
    """Check whether autograd refuses to answer about a tensor: a view whose base was written to."""
    return history_of(tensor) is _UNSEEN


def has_no_past(tensor: torch.Tensor) -> bool:
    """Check whether a tensor has no autograd history."""
    history = history_of(tensor)
    return history is None or (isinstance(history, tuple) and history[0] is None)


def version_of(tensor: torch.Tensor) -> int:
    """Return how many writes to a tensor's memory autograd has seen; 0 for inference tensors, which have no version."""
    return 0 if tensor.is_inference() else tensor._version
