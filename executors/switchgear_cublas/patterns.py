"""The passes: products with what cuBLASLt can do beside them become one operator of this package.

Before differentiation, a linear layer and the activation behind it; before executors claim, in what the backward has
become by then, a product and the gradient of a GELU behind it, and the gradients of a weight and its bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import switchgear as sg

from .executor import CublasExecutor
from .operators import LINEAR_FP8, LINEAR_GELU, LINEAR_RELU, MATMUL_BGRAD, MATMUL_DGELU

_OWNER = "cublas"
_VIEWS = frozenset({"aten.view.default", "aten._unsafe_view.default"})
_LINEAR = "torch.nn.functional.linear"
_MM = "aten.mm.default"
_T = "aten.t.default"
_BY_ERF = "GELU by erf is not that of the epilogue, which is approximate='tanh'"


@dataclass(frozen=True, slots=True, eq=False)
class _Product:
    """A call that multiplies: what `linear_…` takes of it."""

    call: sg.BoundSymbol
    x: sg.TensorProxy
    weight: sg.TensorProxy
    bias: sg.TensorProxy | None
    transposed: bool

    @property
    def arguments(self) -> tuple[Any, ...]:
        flag = (True,) if self.transposed else ()
        return (self.x, self.weight, self.bias, *flag)


def fuse_activations(trace: sg.Trace, context: sg.PassContext) -> sg.Trace:
    """Linear layers, or products of matrices, with the GELU (tanh) or ReLU that alone reads them."""
    lines = sg.Lines(trace)
    if any(isinstance(executor, CublasExecutor) and executor.fp8 for executor in context.executors):
        _round_linears(lines, context)
    for item in trace.bound_symbols:
        leaf = sg.leaf_of(item)
        activation = None if leaf is None else _ACTIVATIONS.get(leaf.symbol.name)
        if leaf is None or activation is None or lines.maker(item.output) is None:
            continue
        product = _product(lines.maker(leaf.inputs[0]))
        if product is None:
            continue
        made = leaf.inputs[0]
        reason = lines.seen_elsewhere(made)
        if activation is LINEAR_GELU and sg.argument(leaf, "approximate") != "tanh":
            reason = _BY_ERF
        elif (product.call.grad_enabled, product.call.tags) != (item.grad_enabled, item.tags):
            reason = "product and activation are in different regions (no_grad or checkpoint)"
        if reason:
            context.decline(_OWNER, item, reason)
            continue
        candidate = sg.composite(activation, product.arguments, item.output, (product.call, item))
        if context.takes(_OWNER, candidate):
            lines.replace(candidate.subsymbols, candidate)
    return lines.result()


def _round_linears(lines: sg.Lines, context: sg.PassContext) -> None:
    for item in lines.trace.bound_symbols:
        product = _product(item) if item.symbol.name == _LINEAR else None
        if product is not None:
            candidate = sg.composite(LINEAR_FP8, product.arguments, item.output, (item,))
            if context.takes(_OWNER, candidate):
                lines.replace((item,), candidate)


def fuse_gradients(trace: sg.Trace, context: sg.PassContext) -> sg.Trace:
    """Products with the gradient of a GELU that alone reads them, and gradients of weights with those of biases."""
    lines = sg.Lines(trace)
    for item in trace.bound_symbols:
        leaf = sg.leaf_of(item)
        if leaf is None:
            continue
        if leaf.symbol.name == "aten.gelu_backward.default":
            _fuse_dgelu(lines, context, item, leaf)
        elif leaf.symbol.name == "aten.sum.dim_IntList":
            _fuse_bgrad(lines, context, leaf)
    return lines.result()


def _fuse_dgelu(lines: sg.Lines, context: sg.PassContext, item: sg.BoundSymbol, leaf: sg.BoundSymbol) -> None:
    grad, z = leaf.inputs
    behind = list(_back_to_product(lines, grad))
    product = sg.leaf_of(behind[-1]) if behind else None
    if product is None or product.symbol.name != _MM:
        return
    reason = next(filter(None, (lines.seen_elsewhere(part.outputs[0]) for part in behind)), "")
    if sg.argument(leaf, "approximate") != "tanh":
        reason = _BY_ERF
    if reason:
        context.decline(_OWNER, item, reason)
        return
    candidate = sg.composite(MATMUL_DGELU, (*product.inputs, z), item.output, (*reversed(behind), item))
    if context.takes(_OWNER, candidate):
        lines.replace(candidate.subsymbols, candidate)


def _back_to_product(lines: sg.Lines, value: sg.TensorProxy) -> Iterator[sg.BoundSymbol]:
    """The lines that a value comes from, back through its views to what makes it."""
    while (call := lines.maker(value)) is not None:
        yield call
        leaf = sg.leaf_of(call)
        if leaf is None or leaf.symbol.name not in _VIEWS:
            return
        value = leaf.inputs[0]


def _fuse_bgrad(lines: sg.Lines, context: sg.PassContext, leaf: sg.BoundSymbol) -> None:
    (grad,) = leaf.inputs
    if len(grad.shape) != 2 or [*leaf.args[1:], *leaf.kwargs.values()] != [[0], True]:
        return
    total = lines.trace.bound_symbols[lines.place[leaf.outputs[0].name]]
    for product, transpose, transposed in _weight_gradients(lines, grad):
        at = lines.place[product.outputs[0].name]
        if any(lines.place[one.outputs[0].name] < at for one in lines.readers(total.outputs[0])):
            reason = f"{total.outputs[0].name} is read before the gradient of the weight is made"
            context.decline(_OWNER, total, reason)
            continue
        left, right = product.inputs
        # others may read the transpose too, so that line stays, and is dead code if they do not
        again = lines.fresh(left)
        parts = (replace(transpose, output=again), replace(product, args=(again, right)), total)
        arguments = (grad, transpose.inputs[0], True) if transposed else (grad, right)
        candidate = sg.composite(MATMUL_BGRAD, arguments, (product.output, total.output), parts)
        if context.takes(_OWNER, candidate):
            lines.replace(parts[1:], candidate, product)
        return


def _weight_gradients(lines: sg.Lines, grad: sg.TensorProxy) -> Iterator[tuple[sg.BoundSymbol, sg.BoundSymbol, bool]]:
    """The products of a linear layer's gradient with its rows, each with the transpose in it.

    That is `grad.t() @ rows`, or, for a transposed weight, `rows.t() @ grad`.
    """
    transposes = [one.outputs[0] for one in map(sg.leaf_of, lines.readers(grad)) if one and one.symbol.name == _T]
    reading = {lines.place[one.outputs[0].name]: one for value in (grad, *transposes) for one in lines.readers(value)}
    for _, reader in sorted(reading.items()):
        product = sg.leaf_of(reader)
        if product is None or product.symbol.name != _MM or lines.maker(product.output) is None:
            continue
        left, right = product.inputs
        maker = lines.maker(left)
        transpose = None if maker is None else sg.leaf_of(maker)
        if transpose is not None and transpose.symbol.name == _T:
            if transpose.inputs[0] == grad:
                yield product, transpose, False
            elif right == grad:
                yield product, transpose, True


def _product(call: sg.BoundSymbol | None) -> _Product | None:
    """A call as a product that has an epilogue, if it is one: of matrices, with a bias of one row or none."""
    leaf = None if call is None else sg.leaf_of(call)
    if call is None:
        return None
    if call.symbol.name == _LINEAR:
        x, weight, bias = (sg.argument(call, name) for name in ("input", "weight", "bias"))
        found = _Product(call, x, weight, bias, transposed=False)
        width = weight.shape[0]
    elif leaf is not None and leaf.symbol.name == _MM:
        x, weight = leaf.inputs
        found = _Product(call, x, weight, None, transposed=True)
        width = weight.shape[1]
    elif leaf is not None and leaf.symbol.name == "aten.addmm.default" and not leaf.kwargs and len(leaf.args) == 3:
        bias, x, weight = leaf.inputs
        found = _Product(call, x, weight, bias, transposed=True)
        width = weight.shape[1]
    else:
        return None
    fits = len(found.weight.shape) == 2 and (found.bias is None or found.bias.shape == (width,))
    return found if fits else None


_ACTIVATIONS = {"aten.gelu.default": LINEAR_GELU, "aten.relu.default": LINEAR_RELU}
#: In the order in which they run.
PASSES: Sequence[sg.PassPlacement] = (
    sg.PassPlacement("cublas_activations", "before_grad", fuse_activations),
    sg.PassPlacement("cublas_gradients", "before_claim", fuse_gradients),
)
