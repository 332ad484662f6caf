"""Fast paths: places where PyTorch tests for plain tensors, and would treat the stand-ins of a capture differently."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import nn

from switchgear_core.patches import redirected
from switchgear_core.record.handler import Handler


class FastPaths(Handler):
    """Handler of fused attention and encoder layers: PyTorch uses them without gradients, for plain tensors.

    The stand-ins of a capture count as plain tensors: they override no function, whatever modes are active.
    """

    def around(self) -> AbstractContextManager[None]:
        """Redirect `torch.overrides.has_torch_function`, as named in fast paths; other code has another name for it."""
        return redirected(torch.overrides, "has_torch_function", _is_overridden)


def _is_overridden(original: Callable[..., bool], arguments: Iterable[object]) -> bool:
    kinds = {type(value) for value in arguments if isinstance(value, torch.Tensor)}
    return not kinds <= {torch.Tensor, nn.Parameter}
