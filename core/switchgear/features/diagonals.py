"""`fill_diagonal_` of a matrix, as contrastive losses have it: PyTorch's own parts are refused, for `as_strided`."""

from __future__ import annotations

import torch

from switchgear.capture.call import Call
from switchgear.capture.handler import PASS, Handler
from switchgear.capture.recorder import Recorder


class Diagonals(Handler):
    """A write to the view that `diagonal` gives."""

    functions = frozenset({torch.Tensor.fill_diagonal_})

    def take(self, recorder: Recorder, call: Call) -> object:
        """The matrix, or pass for what has more dimensions or goes on below the last row."""
        return _filled(*call.args, **call.kwargs)


def _filled(tensor: torch.Tensor, fill_value: float, wrap: bool = False) -> object:
    if wrap or tensor.dim() != 2:
        return PASS
    tensor.diagonal().fill_(fill_value)
    return tensor
