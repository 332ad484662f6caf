"""Where PyTorch asks whether a tensor is a plain one, and does otherwise for what stands for one in a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
from torch import nn

from switchgear.patches import redirected
from switchgear.record.handler import Handler


class FastPaths(Handler):
    """Attention and the layers of an encoder are fused without gradients, unless a tensor overrides functions.

    What stands for a tensor in a capture overrides none, whatever modes are at work.
    """

    def around(self) -> AbstractContextManager[None]:
        """They ask for no mode. Others have the function under a name of their own."""
        return redirected(torch.overrides, "has_torch_function", _is_overridden)


def _is_overridden(original: Callable[..., bool], arguments: Iterable[object]) -> bool:
    kinds = {type(value) for value in arguments if isinstance(value, torch.Tensor)}
    return not kinds <= {torch.Tensor, nn.Parameter}
