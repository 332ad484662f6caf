"""The passes: products and adjacent work within cuBLASLt's reach become single operators of Switchgear.

Before differentiation: a linear layer and the following activation. Before executors claim, in the resulting backward:
a product and the following gradient of a GELU, and the gradients of a weight and its bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import switchgear as sg

from .executor import CublasExecutor
from .operators import LINEAR_FP8, LINEAR_GELU, LINEAR_RELU, MATMUL_BGRAD, MATMUL_DGELU

_OWNER = "cublas"
_VIEWS = frozenset({"aten.view.default", "aten._unsafe_view.default"})
_LINEAR = "torch.nn.functional.linear"
_MM = "aten.mm.default"
_T = "aten.t.default"
_ACTIVATIONS = {"aten.gelu.default": LINEAR_GELU, "aten.relu.default": LINEAR_RELU}
_BY_ERF = "GELU by erf is not that of the epilogue, which is approximate='tanh'"
_TWO_REGIONS = "product and activation are in different regions (no_grad or checkpoint)"


def round_linears(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Replace linear layers by layers with an 8-bit product, if requested."""
    lines = sg.passes.Lines(trace)
    if any(isinstance(executor, CublasExecutor) and executor.fp8 for executor in context.executors):
        for item in trace.bound_symbols:
            operands = _operands(item) if item.symbol.name == _LINEAR else None
            if operands is not None:
                context.offer(_OWNER, lines, sg.passes.composite(LINEAR_FP8, operands, item.output, (item,)))
    return lines.result()


def fuse_activations(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Join linear layers, or matrix products, with a GELU (tanh) or ReLU that is their only reader."""
    lines = sg.passes.Lines(trace)
    for item in trace.bound_symbols:
        leaf = sg.passes.leaf_of(item)
        if leaf is None or leaf.symbol.name not in _ACTIVATIONS:
            continue
        activation = _ACTIVATIONS[leaf.symbol.name]
        product = lines.maker(leaf.inputs[0])
        operands = None if product is None else _operands(product)
        if product is None or operands is None:
            continue
        reason = ""
        if activation is LINEAR_GELU and sg.passes.argument(leaf, "approximate") != "tanh":
            reason = _BY_ERF
        elif (product.grad_enabled, product.tags) != (item.grad_enabled, item.tags):
            reason = _TWO_REGIONS
        context.offer(_OWNER, lines, sg.passes.composite(activation, operands, item.output, (product, item)), reason)
    return lines.result()


def _operands(call: sg.BoundSymbol) -> tuple[Any, ...] | None:
    """Return the arguments of `linear_…` for a matrix product, with a bias of one row or none; None for other calls."""
    leaf = sg.passes.leaf_of(call)
    if call.symbol.name == _LINEAR:
        x, weight, bias = (sg.passes.argument(call, name) for name in ("input", "weight", "bias"))
        transposed = False
    elif leaf is not None and leaf.symbol.name == _MM:
        x, weight = leaf.inputs
        bias, transposed = None, True
    elif leaf is not None and leaf.symbol.name == "aten.addmm.default" and not leaf.kwargs and len(leaf.args) == 3:
        bias, x, weight = leaf.inputs
        transposed = True
    else:
        return None
    if len(weight.shape) != 2 or (bias is not None and bias.shape != (weight.shape[1 if transposed else 0],)):
        return None
    return (x, weight, bias, True) if transposed else (x, weight, bias)


def fuse_gelu_gradients(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Join products with the gradient of a GELU (tanh) that is their only reader."""
    lines = sg.passes.Lines(trace)
    for item in trace.bound_symbols:
        leaf = sg.passes.leaf_of(item)
        if leaf is None or leaf.symbol.name != "aten.gelu_backward.default":
            continue
        grad, z = leaf.inputs
        parts = lines.back(grad, through=_VIEWS)
        product = sg.passes.leaf_of(parts[0]) if parts else None
        if product is None or product.symbol.name != _MM:
            continue
        call = sg.passes.composite(MATMUL_DGELU, (*product.inputs, z), item.output, (*parts, item))
        context.offer(_OWNER, lines, call, unless="" if sg.passes.argument(leaf, "approximate") == "tanh" else _BY_ERF)
    return lines.result()


def fuse_bias_gradients(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Join the gradients of weights and of their biases."""
    lines = sg.passes.Lines(trace)
    for total in trace.bound_symbols:
        leaf = sg.passes.leaf_of(total)
        if leaf is None or leaf.symbol.name != "aten.sum.dim_IntList" or len(leaf.inputs[0].shape) != 2:
            continue
        (grad,) = leaf.inputs
        if [*leaf.args[1:], *leaf.kwargs.values()] != [[0], True]:
            continue
        for product, transpose in _weight_gradients(lines, grad):
            at = lines.place[product.output.name]
            if any(lines.place[reader.outputs[0].name] < at for reader in lines.readers(total.output)):
                reason = f"{total.output.name} is read before the gradient of the weight is made"
                context.decline(_OWNER, total, reason)
                continue
            # others may read the transpose too, so its line stays, possibly as dead code
            copy, rows = lines.fresh(product.inputs[0]), product.inputs[1]
            parts = (replace(transpose, output=copy), replace(product, args=(copy, rows)), total)
            operands = (grad, rows) if transpose.inputs[0] == grad else (grad, transpose.inputs[0], True)
            call = sg.passes.composite(MATMUL_BGRAD, operands, (product.output, total.output), parts)
            if context.takes(_OWNER, call):
                lines.replace(parts[1:], call, product)
            break
    return lines.result()


def _weight_gradients(lines: sg.passes.Lines, grad: sg.TensorProxy) -> Iterator[tuple[sg.BoundSymbol, sg.BoundSymbol]]:
    """Yield `grad.t() @ rows`, or, for a transposed weight, `rows.t() @ grad`, each with its transpose."""
    for reader in lines.readers(grad):
        for product in map(sg.passes.leaf_of, (reader, *lines.readers(reader.outputs[0]))):
            if product is None or product.symbol.name != _MM or lines.maker(product.output) is None:
                continue
            transpose = sg.passes.leaf_of(lines.maker(product.inputs[0]))
            if (
                transpose is not None
                and transpose.symbol.name == _T
                and grad in (transpose.inputs[0], product.inputs[1])
            ):
                yield product, transpose


#: In order of running.
PASSES: Sequence[sg.passes.PassPlacement] = (
    sg.passes.PassPlacement("cublas_8_bits", "before_grad", round_linears),
    sg.passes.PassPlacement("cublas_activations", "before_grad", fuse_activations),
    sg.passes.PassPlacement("cublas_gelu_gradients", "before_claim", fuse_gelu_gradients),
    sg.passes.PassPlacement("cublas_bias_gradients", "before_claim", fuse_bias_gradients),
)
