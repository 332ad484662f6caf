"""Calls that take Python numbers from the data of a tensor without an operator."""

from __future__ import annotations

from typing import Any

import torch

from switchgear.capture.handler import PASS, Call, Handler
from switchgear.capture.recorder import Recorder

#: Arguments that PyTorch reads in C++ without calling an operator, by position and name.
_BY_VALUE: dict[str, tuple[int | str, ...]] = {
    "torch.tensor_split": (1, "tensor_indices_or_sections", "indices_or_sections"),
    "torch.ctc_loss": (2, "input_lengths", 3, "target_lengths"),
}


class DataReads(Handler):
    """`tolist()`, and lengths or places that are given as tensors."""

    def answer(self, recorder: Recorder, call: Call) -> Any:
        """What is in the tensor, or the call with numbers in the place of the tensors that PyTorch reads."""
        if call.fn is torch.Tensor.tolist:
            return recorder.read("tolist", call.args[0])
        if call.symbol is not None and call.symbol.name in _BY_VALUE:
            name, places = call.symbol.name, _BY_VALUE[call.symbol.name]

            def value(place: int | str, given: Any) -> Any:
                return (
                    recorder.read(name, given)
                    if place in places and isinstance(given, torch.Tensor)
                    else given
                )

            call.args = tuple([value(place, given) for place, given in enumerate(call.args)])
            call.kwargs = {key: value(key, given) for key, given in call.kwargs.items()}
        return PASS
