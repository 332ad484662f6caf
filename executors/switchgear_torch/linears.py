"""Linear layers: a product with a transposed weight is one call of PyTorch's, which transposes it at less cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

import switchgear as sg

_aten = torch.ops.aten
_LINEAR = sg.Symbol("aten.linear.default", _aten.linear.default)
_TRANSPOSING = (_aten.t.default, torch.t)
_PRODUCTS = (_aten.addmm.default, torch.addmm, _aten.mm.default, torch.mm)


def join_linears(trace: sg.Trace, context: sg.PassContext) -> sg.Trace:
    """Let `linear` stand for a transposition that is read once, by a product of matrices, which may add a bias.

    With matrices it comes to these very calls. On the CPU; elsewhere it has kernels of its own.
    """
    reads = Counter(proxy.name for line in trace.bound_symbols for proxy in line.inputs)
    reads.update(proxy.name for proxy in trace.outputs if proxy is not None)
    transposed: dict[str, sg.BoundSymbol] = {}
    gone: set[str] = set()
    body = []
    for line in trace.bound_symbols:
        if _runs(line, _TRANSPOSING) and reads[line.output.name] == 1 and len(line.args[0].shape) == 2:
            transposed[line.output.name] = line
        elif _is_product(line) and line.args[-1].name in transposed:
            gone.add(line.args[-1].name)
            line = _linear(line, transposed[line.args[-1].name])
        body.append(line)
    if not gone:
        return trace
    return replace(trace, bound_symbols=tuple([line for line in body if _made(line).isdisjoint(gone)]))


def _is_product(line: sg.BoundSymbol) -> bool:
    if not _runs(line, _PRODUCTS) or line.kwargs:
        return False
    return len(line.args) == 2 or len(line.args[0].shape) == 1


def _linear(product: sg.BoundSymbol, transposition: sg.BoundSymbol) -> sg.BoundSymbol:
    *bias, x, _ = product.args
    assert product.implementation is not None
    return replace(
        product,
        symbol=_LINEAR,
        args=(x, transposition.args[0], *bias),
        implementation=replace(product.implementation, fn=_LINEAR.fn, path="torch.nn.functional.linear"),
        choices=(*transposition.choices, *product.choices),
    )


def _runs(line: sg.BoundSymbol, functions: tuple[object, ...]) -> bool:
    implementation = line.implementation
    if implementation is None or not any(implementation.fn is fn for fn in functions):
        return False
    return line.output.device.type == "cpu" and not line.subsymbols


def _made(line: sg.BoundSymbol) -> set[str]:
    return {proxy.name for proxy in line.outputs}
