"""Copy losses: a loss that PyTorch computes in a buffer and returns in that buffer's memory is copied out of it."""

from __future__ import annotations

from dataclasses import replace

import torch

from switchgear.choice import Implementation
from switchgear.proxy import TensorProxy, bytes_of
from switchgear.symbol import BoundSymbol, Symbol
from switchgear.trace import Names, Trace, names_of

from .reuse_buffers import SMALLEST, runs_as_it_is

_aten = torch.ops.aten
#: Their kernels on a CPU reduce into the memory that they have put the losses of all elements in.
_LOSSES = frozenset(
    {
        _aten.mse_loss.default,
        _aten.smooth_l1_loss.default,
        _aten.binary_cross_entropy.default,
        _aten.soft_margin_loss.default,
    }
)
_CLONE = Symbol("aten.clone.default", _aten.clone.default)


def copy_losses(trace: Trace) -> Trace:
    """Let go of the memory of large losses that are reduced to a number and that PyTorch runs."""
    names: Names | None = None
    body: list[BoundSymbol] = []
    for item in trace.bound_symbols:
        loss, implementation = item.output, item.implementation
        if not (item.symbol.fn in _LOSSES and isinstance(loss, TensorProxy) and implementation and _holds(item, loss)):
            body.append(item)
            continue
        names = names or Names(names_of(trace))
        held = replace(loss, name=names.fresh())
        copied = Implementation(implementation.owner, _CLONE.fn)
        body += replace(item, output=held), replace(item, symbol=_CLONE, args=(held,), kwargs={}, implementation=copied)
    return replace(trace, bound_symbols=tuple(body)) if names else trace


def _holds(item: BoundSymbol, loss: TensorProxy) -> bool:
    on_cpu = loss.device.type == "cpu" and not loss.shape
    return on_cpu and runs_as_it_is(item) and max(bytes_of(proxy) for proxy in item.inputs) >= SMALLEST
