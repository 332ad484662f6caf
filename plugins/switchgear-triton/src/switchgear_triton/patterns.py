"""The patterns: code that models write out, as in Transformers, becomes one operator of this package."""

from __future__ import annotations

import switchgear as sg

from .operators import RMS_NORM, ROPE, SWIGLU, symbol

_OWNER = "triton"
_CAST = frozenset({"aten._to_copy.default"})
_MUL, _ADD, _SLICE = "aten.mul.Tensor", "aten.add.Tensor", "aten.slice.Tensor"
_SQUARES = "aten.mean.dim", ("aten.pow.Tensor_Scalar", "x", 2), [-1], True
_NORM = _MUL, "weight", (_MUL, "x", ("aten.rsqrt.default", (_ADD, _SQUARES, "eps")))
_HALVES = [("aten.neg.default", (_SLICE, "x", "dim", "half", "end")), (_SLICE, "x", "dim", 0, "half")]
_TURNED = _ADD, (_MUL, "x", "cos"), (_MUL, ("aten.cat.default", _HALVES, -1), "sin")
_GATED = _MUL, ("aten.silu.default", "gate"), "up"


def norms(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Find RMSNorm; in low precision, with the casts around the norm."""
    lines = sg.passes.Lines(trace)
    for call in trace.bound_symbols:
        match = lines.match(call, _NORM, _CAST)
        if match is None:
            continue
        x, weight, eps = (match.values[name] for name in ("x", "weight", "eps"))
        casts = lines.back(x) if x.dtype != call.output.dtype else []
        if casts:
            x = casts[0].inputs[0]
        unless = "" if weight.shape == x.shape[-1:] and x.dtype == call.output.dtype else "of several dtypes or shapes"
        composite = sg.passes.composite(symbol(RMS_NORM), (x, weight, eps), call.output, (*casts, *match.parts))
        context.offer(_OWNER, lines, composite, unless)
    return lines.result()


def turns(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Find rotary position embedding."""
    lines = sg.passes.Lines(trace)
    for call in trace.bound_symbols:
        match = lines.match(call, _TURNED)
        if match is None:
            continue
        x, cos, sin, half = (match.values[name] for name in ("x", "cos", "sin", "half"))
        composite = sg.passes.composite(symbol(ROPE), (x, cos, sin), call.output, match.parts)
        fits = match.values["dim"] == len(x.shape) - 1 and 2 * half == x.shape[-1] and x.shape == call.output.shape
        context.offer(_OWNER, lines, composite, "" if fits else "other halves than of the last dimension")
    return lines.result()


def gates(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Find SwiGLU."""
    lines = sg.passes.Lines(trace)
    for call in trace.bound_symbols:
        match = lines.match(call, _GATED)
        if match is not None and isinstance(match.values["up"], sg.TensorProxy):
            operands = match.values["gate"], match.values["up"]
            context.offer(_OWNER, lines, sg.passes.composite(symbol(SWIGLU), operands, call.output, match.parts))
    return lines.result()


PASSES = (
    sg.passes.PassPlacement("triton_norms", "before_grad", norms),
    sg.passes.PassPlacement("triton_turns", "before_grad", turns),
    sg.passes.PassPlacement("triton_gates", "before_grad", gates),
)
