"""The pattern: a linear layer and a cross entropy of its logits, which nothing else reads except a z-loss."""

from __future__ import annotations

import torch

import switchgear as sg

_operators = torch.ops.switchgear_chunked_loss
SYMBOL, WITH_SUMS = (
    sg.Symbol(str(operator.default), operator.default)
    for operator in (_operators.linear_cross_entropy, _operators.linear_cross_entropy_and_sums)
)
_OWNER = "chunked_loss"
#: Operators that may lie between the linear layer and the cross entropy: rows stay rows.
_BETWEEN = frozenset({"aten.view.default", "aten._unsafe_view.default", "aten._to_copy.default", "aten.alias.default"})


def chunk_losses(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Replace each linear layer and its cross entropy with one call."""
    lines = sg.passes.Lines(trace)
    for call in trace.bound_symbols:
        if call.symbol.name != "torch.nn.functional.cross_entropy":
            continue
        parts = [*lines.back(call.inputs[0], through=_BETWEEN), call]
        linear = parts[0]
        if linear.symbol.name != "torch.nn.functional.linear":
            continue
        x, weight, bias = (sg.passes.argument(linear, name) for name in ("input", "weight", "bias"))
        options = (sg.passes.argument(call, name) for name in ("target", "ignore_index", "label_smoothing"))
        operands = (x, weight, bias, *options, sg.passes.argument(call, "reduction") == "mean")
        composite = sg.passes.composite(SYMBOL, operands, call.output, parts)
        for sums in _sums(lines, x, parts):
            both = sorted((*parts, sums), key=lambda part: lines.place[part.outputs[0].name])
            composite = sg.passes.composite(WITH_SUMS, operands, (call.output, sums.output), both)
        context.offer(_OWNER, lines, composite, unless=_objection(call, parts))
    return lines.result()


def _sums(lines: sg.passes.Lines, x: sg.TensorProxy, parts: list[sg.BoundSymbol]) -> list[sg.BoundSymbol]:
    """Return the `logsumexp` of the rows, the input of a z-loss; empty if the trace has none."""
    readers = [reader for part in parts[:-1] for reader in lines.readers(part.outputs[0])]
    sums = [reader for reader in readers if reader.symbol.name == "torch.logsumexp"]
    shape, dtype = x.shape[:-1], parts[-1].output.dtype
    return [reader for reader in sums if (reader.output.shape, reader.output.dtype) == (shape, dtype)][:1]


def _objection(call: sg.BoundSymbol, parts: list[sg.BoundSymbol]) -> str:
    """Return the reason against the replacement, or an empty string."""
    logits = call.inputs[0]
    if sg.passes.argument(call, "weight") is not None or sg.passes.argument(call, "reduction") not in ("mean", "sum"):
        return "class weights, or reduction='none'"
    if sg.passes.argument(call, "target").dtype.is_floating_point or len(logits.shape) != 2:
        return "targets that are probabilities, or logits that are no matrix"
    if any(part.outputs[0].shape[-1] != logits.shape[-1] for part in parts[:-1]):
        return "classes are not the last dimension of the linear layer"
    return ""


PASS = sg.passes.PassPlacement("chunk_losses", "before_grad", chunk_losses)
