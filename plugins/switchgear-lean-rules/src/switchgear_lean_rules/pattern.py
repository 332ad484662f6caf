"""The pattern: GELU (tanh) written out, as `gelu_new` of Transformers; PyTorch's own GELU saves its argument alone."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

import switchgear as sg

_GELU = sg.Symbol("aten.gelu.default", torch.ops.aten.gelu.default)
_MUL, _ADD = "aten.mul.Tensor", "aten.add.Tensor"
_CUBE = _MUL, ("aten.pow.Tensor_Scalar", "x", 3.0), 0.044715
_TANH = "aten.tanh.default", (_MUL, (_ADD, "x", _CUBE), math.sqrt(2 / math.pi))
_WRITTEN_OUT = _MUL, (_MUL, "x", 0.5), (_ADD, _TANH, 1.0)


def one_gelu(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Replace each written-out and differentiated GELU with PyTorch's GELU."""
    lines = sg.passes.Lines(trace)
    for call in trace.bound_symbols:
        match = lines.match(call, _WRITTEN_OUT) if call.grad_enabled else None
        if match is None or not match.values["x"].requires_grad:
            continue
        composite = sg.passes.composite(_GELU, (match.values["x"],), call.output, match.parts)
        if reason := lines.seen_elsewhere(composite):
            context.decline("lean_rules", call, reason)
            continue
        lines.replace(match.parts, replace(composite, kwargs={"approximate": "tanh"}, subsymbols=()))
    return lines.result()


PASS = sg.passes.PassPlacement("one_gelu", "before_grad", one_gelu)
