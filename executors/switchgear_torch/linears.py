"""Linear layers: a product with a transposed weight is one PyTorch call, which transposes at less cost."""

from __future__ import annotations

from dataclasses import replace

import torch

import switchgear as sg

_aten = torch.ops.aten
_LINEAR = sg.Symbol("aten.linear.default", _aten.linear.default)
_TRANSPOSING = (_aten.t.default, torch.t)
_PRODUCTS = (_aten.addmm.default, torch.addmm, _aten.mm.default, torch.mm)


def join_linears(trace: sg.Trace, context: sg.passes.PassContext) -> sg.Trace:
    """Replace a transposition that only a matrix product reads, with an optional bias, by `linear`.

    With matrices, `linear` makes exactly these calls. On the CPU; elsewhere it has its own kernels.
    """
    lines = sg.passes.Lines(trace)
    for product in trace.bound_symbols:
        transposition = lines.maker(product.args[-1]) if _is_product(product) else None
        if transposition is None or not _is_transposition(transposition):
            continue
        linear = _linear(product, transposition)
        if not lines.seen_elsewhere(linear):
            lines.replace(linear.subsymbols, replace(linear, subsymbols=()))
    return lines.result()


def _is_product(line: sg.BoundSymbol) -> bool:
    if not _runs(line, _PRODUCTS) or line.kwargs:
        return False
    *bias, x, transposed = line.args
    return x.name != transposed.name and (not bias or len(bias[0].shape) == 1)


def _is_transposition(line: sg.BoundSymbol) -> bool:
    return _runs(line, _TRANSPOSING) and len(line.args[0].shape) == 2


def _linear(product: sg.BoundSymbol, transposition: sg.BoundSymbol) -> sg.BoundSymbol:
    *bias, x, _ = product.args
    assert product.implementation is not None
    return replace(
        product,
        symbol=_LINEAR,
        args=(x, transposition.args[0], *bias),
        subsymbols=(transposition, product),
        implementation=replace(product.implementation, fn=_LINEAR.fn, path="torch.nn.functional.linear"),
        choices=(*transposition.choices, *product.choices),
    )


def _runs(line: sg.BoundSymbol, functions: tuple[object, ...]) -> bool:
    implementation = line.implementation
    if implementation is None or not any(implementation.fn is fn for fn in functions):
        return False
    return line.output.device.type == "cpu" and not line.subsymbols
