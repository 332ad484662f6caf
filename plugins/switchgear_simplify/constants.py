"""Constant folding: values that depend only on shapes and constants are computed once.

Limits are 16 MiB a value and 64 MiB a trace. Outputs, and values in their memory, are excluded: the caller may write to
outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.aliasing import storages
from switchgear_core.ir.composites import leaves_of
from switchgear_core.ir.evaluation import evaluate
from switchgear_core.ir.proxy import TensorProxy, bytes_of
from switchgear_core.ir.purity import call_key, is_pure
from switchgear_core.ir.symbol import EXACT, BoundSymbol, proxies, with_parts
from switchgear_core.ir.trace import Trace
from switchgear_core.record.sizes import depends_on_sizes

#: The bytes of one folded value, and of all in a trace, at most: the trace keeps them alive.
LARGEST, IN_ALL = 16 << 20, 64 << 20
_aten = torch.ops.aten
_PACKETS = (
    _aten.zeros_like,
    _aten.ones_like,
    _aten.full_like,
    _aten.new_zeros,
    _aten.new_ones,
    _aten.new_full,
)
#: Operators that read only the metadata of their argument.
_LIKE = frozenset(packet.default for packet in _PACKETS)


def fold_constants(trace: Trace) -> Trace:
    """Turn values into constants of the trace if constants, factories and shapes alone determine them.

    Outputs, and values in their memory, are excluded, because calls would share the memory; their inputs are folded.
    Values that require grad are excluded, and values beyond `LARGEST` and `IN_ALL`.
    """
    storage = storages(trace.bound_symbols)
    escaping = frozenset(storage.get(proxy.name, proxy.name) for proxy in proxies(trace.outputs))
    folding = _Folding(dict(trace.tensors), storage, escaping)
    body: list[BoundSymbol] = []
    for item in trace.bound_symbols:
        item = item.reading(folding.same)
        if not folding.fold(item):
            body.append(item)
    if len(body) == len(trace.bound_symbols):
        return trace
    read = {proxy.name for item in with_parts(body) for proxy in item.inputs}
    constants = {name: value for name, value in folding.values.items() if name in read or name in trace.tensors}
    for device in {value.device for value in constants.values()} if folding.size else ():
        if device.type not in ("cpu", "meta"):
            torch.get_device_module(device).synchronize(device)  # other streams may read the constants
    return replace(trace, bound_symbols=tuple(body), tensors=constants)


@dataclass(slots=True, eq=False)
class _Folding:
    """The state of a folding: `values` are the constants so far, `same` maps values to equal constants."""

    values: dict[str, torch.Tensor]
    storage: Mapping[str, str]
    escaping: frozenset[str]
    same: dict[str, TensorProxy] = field(default_factory=dict)
    calls: dict[object, tuple[TensorProxy, ...]] = field(default_factory=dict)
    size: int = 0

    def fold(self, item: BoundSymbol) -> bool:
        """Fold a call if possible; return whether its results are constants."""
        if not self._foldable(item):
            return False
        key = call_key(item)
        calls = self.calls.get(key) if key is not None else None
        if calls is not None:
            self.same.update((proxy.name, twin) for proxy, twin in zip(item.outputs, calls, strict=True))
            return True
        new = sum(bytes_of(proxy) for proxy in item.outputs if proxy.name not in self.storage)
        if new > LARGEST or self.size + new > IN_ALL:
            return False
        values = {proxy.name: self._given(proxy) for proxy in item.inputs} | self.values
        with internals.outside_inference_mode(), internals.real_dispatch():
            evaluate(item.subsymbols or (item,), values)
        if not all(_is_as(values[proxy.name], proxy) for proxy in item.outputs):
            return False
        self.size += new
        self.values.update((proxy.name, values[proxy.name]) for proxy in item.outputs)
        if key is not None:
            self.calls[key] = item.outputs
        return True

    def _foldable(self, item: BoundSymbol) -> bool:
        if depends_on_sizes(item):
            return False
        if any(proxy.name not in self.values for proxy in item.inputs) and not _reads_metadata(item):
            return False
        if not item.outputs or any(proxy.requires_grad for proxy in item.outputs) or not is_pure(item):
            return False
        return all(self.storage.get(proxy.name, proxy.name) not in self.escaping for proxy in item.outputs)

    def _given(self, proxy: TensorProxy) -> torch.Tensor:
        """Return a constant, or a tensor with the metadata of another value."""
        if proxy.name in self.values:
            return self.values[proxy.name]
        return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)


def _reads_metadata(item: BoundSymbol) -> bool:
    if EXACT in item.tags:  # maybe the metadata of a DTensor, whose result is one, too
        return False
    leaves = tuple(leaves_of([item]))
    return (
        len(leaves) == 1 and leaves[0].symbol.fn in _LIKE and all(bytes_of(proxy) <= LARGEST for proxy in item.inputs)
    )


def _is_as(value: torch.Tensor, proxy: TensorProxy) -> bool:
    properties = value.shape, value.stride(), value.dtype, value.device, value.is_conj(), value.is_neg()
    return properties == (
        proxy.shape,
        proxy.stride,
        proxy.dtype,
        proxy.device,
        proxy.is_conj,
        proxy.is_neg,
    )
