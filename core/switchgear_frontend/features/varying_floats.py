"""Floats that change between calls, as operands of arithmetic and comparisons: tensors of a single element."""

from __future__ import annotations

from typing import Any

import torch

from switchgear_core.record.call import Call
from switchgear_core.record.handler import PASS, Handler
from switchgear_core.record.recorder import Recorder
from switchgear_frontend.floats import Float, operand

#: Functions whose kernels give the same bits for a number and for a tensor of a single element.
_NAMES = (
    *("add", "sub", "mul", "div", "subtract", "multiply", "divide", "true_divide", "rsub"),
    *("lt", "le", "gt", "ge", "eq", "ne", "less", "less_equal", "greater", "greater_equal"),
)
_OPERATORS = ("add", "sub", "mul", "truediv", "div")
_METHODS = (
    *(f"__{side}{name}__" for name in _OPERATORS for side in ("", "r", "i")),
    *(f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne")),
)
_FUNCTIONS = frozenset(
    getattr(place, name)
    for place, names in (
        (torch, _NAMES),
        (torch.Tensor, (*_NAMES, *(f"{name}_" for name in _NAMES), *_METHODS)),
    )
    for name in names
    if hasattr(place, name)
)


class VaryingFloats(Handler):
    """Handler of varying floats; functions not listed here refuse such a number."""

    functions = _FUNCTIONS | {torch.tensor}

    def answer(self, recorder: Recorder, call: Call) -> object:
        """Replace the number by its tensor."""
        floats = [value for value in call.args if isinstance(value, Float)]
        if not floats:
            return PASS
        if call.fn is torch.tensor:
            dtype = call.kwargs.get("dtype") or torch.get_default_dtype()
            if call.kwargs.keys() <= {"dtype"}:
                return floats[0].tensor.to(dtype, copy=True)
        elif len(call.args) == 2 and not call.kwargs:
            other = next(value for value in call.args if isinstance(value, torch.Tensor))
            call.args = tuple([_placed(recorder, value, other) for value in call.args])
        return PASS


def _placed(recorder: Recorder, value: Any, other: torch.Tensor) -> Any:
    if not isinstance(value, Float):
        return value
    return recorder.track_outputs(operand(value, other))
