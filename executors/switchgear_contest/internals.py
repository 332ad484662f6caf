"""Every private API of PyTorch that the contest leans on, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes

_FUNCTIONALIZE = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)


@contextmanager
def without_modes() -> Iterator[None]:
    """Run on real tensors outside of autograd and inference mode, whatever modes are active."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C.DisableTorchFunction(),
        torch._C._ExcludeDispatchKeyGuard(_FUNCTIONALIZE),
        _disable_current_modes(),
    ):
        yield
