"""The pattern: GELU (tanh) written out, as `gelu_new` of Transformers; PyTorch's own saves its argument alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

import switchgear as sg

_GELU = sg.Symbol("aten.gelu.default", torch.ops.aten.gelu.default)
_MUL, _ADD = "aten.mul.Tensor", "aten.add.Tensor"
_CUBE = _MUL, ("aten.pow.Tensor_Scalar", "x", 3.0), 0.044715
_TANH = "aten.tanh.default", (_MUL, (_ADD, "x", _CUBE), math.sqrt(2 / math.pi))
_WRITTEN_OUT = _MUL, (_MUL, "x", 0.5), (_ADD, _TANH, 1.0)


def one_gelu(trace: sg.Trace, context: sg.PassContext) -> sg.Trace:
    """Put PyTorch's GELU in the place of each that is written out and differentiated."""
    lines = sg.Lines(trace)
    for call in trace.bound_symbols:
        parts: list[sg.BoundSymbol] = []
        found: list[sg.TensorProxy] = []
        if not call.grad_enabled or not _matches(lines, call, _WRITTEN_OUT, parts, found):
            continue
        x, *others = found
        if not x.requires_grad or any(other.name != x.name for other in others):
            continue
        if reason := next(filter(None, (lines.seen_elsewhere(part.outputs[0]) for part in parts[:-1])), ""):
            context.decline("lean_rules", call, reason)
            continue
        whole = sg.composite(_GELU, (x,), call.output, parts)
        lines.replace(parts, replace(whole, kwargs={"approximate": "tanh"}, subsymbols=()))
    return lines.result()


def _matches(
    lines: sg.Lines, call: sg.BoundSymbol | None, wanted: Any, parts: list[sg.BoundSymbol], found: list[sg.TensorProxy]
) -> bool:
    """Whether a call is what is wanted; if so, `parts` gets the lines, and `found` what stands for x."""
    leaf = None if call is None else sg.leaf_of(call)
    name, *operands = wanted
    if call is None or leaf is None or leaf.symbol.name != name or leaf.kwargs or len(leaf.args) != len(operands):
        return False
    for arguments in (leaf.args, leaf.args[::-1])[: len(operands)]:
        inner: list[sg.BoundSymbol] = []
        values: list[sg.TensorProxy] = []
        for given, operand in zip(arguments, operands, strict=True):
            if operand == "x" and isinstance(given, sg.TensorProxy):
                values.append(given)
            elif isinstance(operand, float) and isinstance(given, (int, float)) and math.isclose(given, operand):
                continue
            elif not isinstance(operand, tuple) or not _matches(lines, lines.maker(given), operand, inner, values):
                break
        else:
            parts += [*inner, call]
            found += values
            return True
    return False


PASS = sg.PassPlacement("one_gelu", "before_grad", one_gelu)
