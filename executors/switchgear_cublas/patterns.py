"""The passes: products with what cuBLASLt can do beside them become one operator of this package.

Before differentiation, a linear layer and the activation behind it; before executors claim, in what the backward has
become by then, a product and the gradient of a GELU behind it, and the gradients of a weight and its bias.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
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


class _Lines:
    """The lines of a trace: who makes and who reads a value, and what is to stand in their place."""

    def __init__(self, trace: sg.Trace) -> None:
        self.trace = trace
        self.place: dict[str, int] = {}
        self.readers: defaultdict[str, set[int]] = defaultdict(set)
        self.returned = {proxy.name for proxy in trace.outputs if proxy is not None}
        self._instead: dict[int, sg.BoundSymbol | None] = {}
        self._names = {
            proxy.name for item in _with_parts(trace.bound_symbols) for proxy in (*item.inputs, *item.outputs)
        }
        for index, item in enumerate(trace.bound_symbols):
            self.place.update((proxy.name, index) for proxy in item.outputs)
            for proxy in item.inputs:
                self.readers[proxy.name].add(index)

    def maker(self, value: Any) -> sg.BoundSymbol | None:
        """The line that makes a value, unless it has become part of another."""
        index = self.place.get(value.name) if isinstance(value, sg.TensorProxy) else None
        return None if index is None or index in self._instead else self.trace.bound_symbols[index]

    def seen_elsewhere(self, value: sg.TensorProxy) -> str:
        """Why a value that one line reads must exist, or an empty string."""
        if value.name in self.returned:
            return f"{value.name} is returned, or saved"
        return f"{value.name} is read elsewhere too" if len(self.readers[value.name]) > 1 else ""

    def replace(self, parts: Iterable[sg.BoundSymbol], at: int, candidate: sg.BoundSymbol) -> None:
        """Have the candidate stand at the place of one of its parts, and nothing at those of the others."""
        for part in parts:
            self._instead[self.place[part.outputs[0].name]] = None
        self._instead[at] = candidate

    def fresh(self, name: str) -> str:
        """A name that the trace does not use, made of one that it does."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name

    def result(self) -> sg.Trace:
        """The trace with what stands instead; the very trace where nothing does."""
        if not self._instead:
            return self.trace
        body = [self._instead.get(index, item) for index, item in enumerate(self.trace.bound_symbols)]
        return replace(self.trace, bound_symbols=tuple([item for item in body if item is not None]))


def fuse_activations(trace: sg.Trace, context: sg.PassContext) -> sg.Trace:
    """Linear layers, or products of matrices, with the GELU (tanh) or ReLU that alone reads them."""
    lines = _Lines(trace)
    if any(isinstance(executor, CublasExecutor) and executor.fp8 for executor in context.executors):
        _round_linears(lines, context)
    for index, item in enumerate(trace.bound_symbols):
        leaf = _leaf(item)
        activation = None if leaf is None else _ACTIVATIONS.get(leaf.symbol.name)
        if leaf is None or activation is None or lines.maker(item.output) is None:
            continue
        product = _product(lines.maker(leaf.inputs[0]))
        if product is None:
            continue
        made = leaf.inputs[0]
        reason = lines.seen_elsewhere(made)
        if activation is LINEAR_GELU and _argument(leaf, 1, "approximate", "none") != "tanh":
            reason = _BY_ERF
        elif (product.call.grad_enabled, product.call.tags) != (item.grad_enabled, item.tags):
            reason = "product and activation are in different regions (no_grad or checkpoint)"
        if reason:
            context.decline(_OWNER, item, reason)
            continue
        candidate = _candidate(activation, product.arguments, item.output, (product.call, item))
        if context.takes(_OWNER, candidate):
            lines.replace(candidate.subsymbols, index, candidate)
    return lines.result()


def _round_linears(lines: _Lines, context: sg.PassContext) -> None:
    for index, item in enumerate(lines.trace.bound_symbols):
        product = _product(item) if item.symbol.name == _LINEAR else None
        if product is not None:
            candidate = _candidate(LINEAR_FP8, product.arguments, item.output, (item,))
            if context.takes(_OWNER, candidate):
                lines.replace((item,), index, candidate)


def fuse_gradients(trace: sg.Trace, context: sg.PassContext) -> sg.Trace:
    """Products with the gradient of a GELU that alone reads them, and gradients of weights with those of biases."""
    lines = _Lines(trace)
    for index, item in enumerate(trace.bound_symbols):
        leaf = _leaf(item)
        if leaf is None:
            continue
        if leaf.symbol.name == "aten.gelu_backward.default":
            _fuse_dgelu(lines, context, index, leaf)
        elif leaf.symbol.name == "aten.sum.dim_IntList":
            _fuse_bgrad(lines, context, leaf)
    return lines.result()


def _fuse_dgelu(lines: _Lines, context: sg.PassContext, index: int, leaf: sg.BoundSymbol) -> None:
    grad, z = leaf.inputs
    item = lines.trace.bound_symbols[index]
    behind = list(_back_to_product(lines, grad))
    product = _leaf(behind[-1]) if behind else None
    if product is None or product.symbol.name != _MM:
        return
    reason = next(filter(None, (lines.seen_elsewhere(part.outputs[0]) for part in behind)), "")
    if _argument(leaf, 2, "approximate", "none") != "tanh":
        reason = _BY_ERF
    if reason:
        context.decline(_OWNER, item, reason)
        return
    candidate = _candidate(MATMUL_DGELU, (*product.inputs, z), item.output, (*reversed(behind), item))
    if context.takes(_OWNER, candidate):
        lines.replace(candidate.subsymbols, index, candidate)


def _back_to_product(lines: _Lines, value: sg.TensorProxy) -> Iterator[sg.BoundSymbol]:
    """The lines that a value comes from, back through its views to what makes it."""
    while (call := lines.maker(value)) is not None:
        yield call
        leaf = _leaf(call)
        if leaf is None or leaf.symbol.name not in _VIEWS:
            return
        value = leaf.inputs[0]


def _fuse_bgrad(lines: _Lines, context: sg.PassContext, leaf: sg.BoundSymbol) -> None:
    (grad,) = leaf.inputs
    if len(grad.shape) != 2 or [*leaf.args[1:], *leaf.kwargs.values()] != [[0], True]:
        return
    total = lines.trace.bound_symbols[lines.place[leaf.outputs[0].name]]
    for product, transpose, transposed in _weight_gradients(lines, grad):
        at = lines.place[product.outputs[0].name]
        if any(place < at for place in lines.readers[total.outputs[0].name]):
            reason = f"{total.outputs[0].name} is read before the gradient of the weight is made"
            context.decline(_OWNER, total, reason)
            continue
        left, right = product.inputs
        # others may read the transpose too, so that line stays, and is dead code if they do not
        again = replace(left, name=lines.fresh(left.name))
        parts = (replace(transpose, output=again), replace(product, args=(again, right)), total)
        arguments = (grad, transpose.inputs[0], True) if transposed else (grad, right)
        candidate = _candidate(MATMUL_BGRAD, arguments, (product.output, total.output), parts)
        if context.takes(_OWNER, candidate):
            lines.replace(parts[1:], at, candidate)
        return


def _weight_gradients(lines: _Lines, grad: sg.TensorProxy) -> Iterator[tuple[sg.BoundSymbol, sg.BoundSymbol, bool]]:
    """The products of a linear layer's gradient with its rows, each with the transpose in it.

    That is `grad.t() @ rows`, or, for a transposed weight, `rows.t() @ grad`.
    """
    for index in sorted({reader for name in _with_transposes(lines, grad) for reader in lines.readers[name]}):
        product = _leaf(lines.trace.bound_symbols[index])
        if product is None or product.symbol.name != _MM or lines.maker(product.output) is None:
            continue
        left, right = product.inputs
        maker = lines.maker(left)
        transpose = None if maker is None else _leaf(maker)
        if transpose is not None and transpose.symbol.name == _T:
            if transpose.inputs[0] == grad:
                yield product, transpose, False
            elif right == grad:
                yield product, transpose, True


def _with_transposes(lines: _Lines, value: sg.TensorProxy) -> Iterator[str]:
    yield value.name
    for index in lines.readers[value.name]:
        leaf = _leaf(lines.trace.bound_symbols[index])
        if leaf is not None and leaf.symbol.name == _T:
            yield leaf.outputs[0].name


def _product(call: sg.BoundSymbol | None) -> _Product | None:
    """A call as a product that has an epilogue, if it is one: of matrices, with a bias of one row or none."""
    leaf = None if call is None else _leaf(call)
    if call is None:
        return None
    if call.symbol.name == _LINEAR:
        x, weight, bias = (_argument(call, i, name, None) for i, name in enumerate(("input", "weight", "bias")))
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


def _with_parts(calls: Iterable[sg.BoundSymbol]) -> Iterator[sg.BoundSymbol]:
    for call in calls:
        yield call
        yield from _with_parts(call.subsymbols)


def _leaf(call: sg.BoundSymbol) -> sg.BoundSymbol | None:
    """The one leaf that a call comes to, if there is just one."""
    leaf = call
    while leaf.subsymbols:
        if len(leaf.subsymbols) > 1:
            return None
        (leaf,) = leaf.subsymbols
    return leaf if leaf.output == call.output else None


def _argument(call: sg.BoundSymbol, position: int, name: str, default: Any) -> Any:
    return call.args[position] if len(call.args) > position else call.kwargs.get(name, default)


def _candidate(
    symbol: sg.Symbol, arguments: tuple[Any, ...], output: Any, parts: tuple[sg.BoundSymbol, ...]
) -> sg.BoundSymbol:
    """A call of an operator of this package that stands for others."""
    last = parts[-1]
    links = tuple(dict.fromkeys(link for part in parts for link in part.links))
    tags = frozenset[str]().union(*(part.tags for part in parts))
    return sg.BoundSymbol(symbol, arguments, {}, output, parts, last.source, last.grad_enabled, tags, links)


_ACTIVATIONS = {"aten.gelu.default": LINEAR_GELU, "aten.relu.default": LINEAR_RELU}
#: In the order in which they run.
PASSES: Sequence[sg.PassPlacement] = (
    sg.PassPlacement("cublas_activations", "before_grad", fuse_activations),
    sg.PassPlacement("cublas_gradients", "before_claim", fuse_gradients),
)
