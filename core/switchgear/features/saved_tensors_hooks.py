"""Hooks on saved tensors, set inside: refused, for they would see what the capture saves, once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NoReturn

import torch

from switchgear.capture.handler import Handler
from switchgear.errors import Unsupported
from switchgear.patches import redirected


class SavedTensorsHooks(Handler):
    """`torch.autograd.graph.saved_tensors_hooks` and what is made of it, such as `save_on_cpu`."""

    def around(self) -> contextlib.AbstractContextManager[None]:
        """Entering one is refused."""
        return redirected(torch.autograd.graph.saved_tensors_hooks, "__enter__", _refuse)


def _refuse(original: Callable[..., object], hooks: object) -> NoReturn:
    raise Unsupported(
        f"{type(hooks).__module__}.{type(hooks).__name__} inside a jitted function: it would see what the capture "
        "saves, once; set it around the call",
        splits=False,
    )
