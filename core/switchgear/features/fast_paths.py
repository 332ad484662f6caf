"""Where PyTorch asks whether a tensor is a plain one, and does otherwise for what stands for one in a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from switchgear.capture.call import Call
from switchgear.capture.handler import PASS, Handler
from switchgear.capture.recorder import Recorder
from switchgear.nesting import map_tensors, tensors_in
from switchgear.patches import redirected


class FastPaths(Handler):
    """Attention and the layers of an encoder are fused without gradients, unless a tensor overrides functions.

    What stands for a tensor in a capture overrides none, whatever modes are at work.
    """

    def around(self) -> AbstractContextManager[None]:
        """They ask for no mode. Others have the function under a name of their own."""
        return redirected(torch.overrides, "has_torch_function", _is_overridden)


class BatchOfOne(Handler):
    """A product of batches of which one is a single matrix that needs no gradient: eager repeats it.

    Of what is no plain tensor, or requires grad, PyTorch multiplies the rows of all matrices by it at once.
    """

    functions = frozenset(
        {
            torch.matmul,
            torch.linalg.matmul,
            torch.Tensor.matmul,
            torch.Tensor.__matmul__,
            torch.Tensor.__rmatmul__,
        }
    )

    def answer(self, recorder: Recorder, call: Call) -> object:
        """The call of matrices that are repeated already."""
        tensors = [*tensors_in((call.args, call.kwargs))]
        if len(tensors) == 2 and all(tensor.dim() == 3 for tensor in tensors):
            others = {id(one): other for one, other in (tensors, tensors[::-1])}
            call.args, call.kwargs = map_tensors(
                lambda tensor: _repeated(recorder, tensor, others[id(tensor)]),
                (call.args, call.kwargs),
            )
        return PASS


def _repeated(recorder: Recorder, tensor: torch.Tensor, other: torch.Tensor) -> Any:
    if tensor.requires_grad or not other.requires_grad or tensor.shape[0] != 1:
        return tensor
    if other.shape[0] == 1:
        return tensor
    return recorder.track_outputs(tensor.expand(other.shape[0], -1, -1))


def _is_overridden(original: Callable[..., bool], arguments: Iterable[object]) -> bool:
    kinds = {type(value) for value in arguments if isinstance(value, torch.Tensor)}
    return not kinds <= {torch.Tensor, nn.Parameter}
