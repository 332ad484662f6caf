"""`torch.autograd.grad` inside, and what a function asks of the nodes of autograd's graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from switchgear.capture.gradients_inside import record_gradients
from switchgear.capture.handler import Call, Handler, getter
from switchgear.capture.recorder import Recorder
from switchgear.errors import Unsupported


class InnerGrad(Handler):
    """A call of `torch.autograd.grad` is one symbol, which a pass differentiates by the rules for all else."""

    functions = frozenset({torch.autograd.grad})

    def answer(self, recorder: Recorder, call: Call) -> Any:
        """The gradients."""
        assert call.fn is not None
        return record_gradients(recorder, call.fn, call.args, call.kwargs)


class GradFnReads(Handler):
    """A node may be looked at, but for hooks on it, which would be lost."""

    functions = frozenset({getter("grad_fn")})

    def answer(self, recorder: Recorder, call: Call) -> Any:
        """The node as the function sees it."""
        assert call.fn is not None
        node = call.fn(*call.args, **call.kwargs)
        return None if node is None else GradFn(node, recorder.here)


class GradFn:
    """An autograd node as the function under capture sees it."""

    def __init__(self, node: Any, here: Callable[[], str]) -> None:
        self._node = node
        self._here = here

    def __getattr__(self, name: str) -> Any:
        if name in ("register_hook", "register_prehook", "next_functions"):
            raise Unsupported(
                f"grad_fn.{name}, or a backward hook on a module, inside a jitted function, in {self._here()}; "
                "register the hook outside, on the inputs or outputs of the jitted function"
            )
        return getattr(self._node, name)
