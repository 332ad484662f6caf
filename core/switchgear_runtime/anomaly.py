"""Anomaly mode: under PyTorch's own switch a backward runs line by line, to name the first line with a NaN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.evaluation import evaluate
from switchgear_core.ir.printing import BOXED
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.purity import uninitialised
from switchgear_core.ir.symbol import BOX, BoundSymbol
from switchgear_core.ir.trace import Trace
from switchgear_core.nesting import tensors_in
from switchgear_core.passes.pipeline import Program
from switchgear_runtime.walk import function_of, walk


def is_asked_for() -> bool:
    """Return whether `torch.autograd.detect_anomaly` looks for NaNs."""
    return torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


def run_watched(program: Program, forward: Trace, arguments: tuple[Any, ...]) -> Any:
    """Run the backward of `forward` line by line.

    Raises:
        RuntimeError: as PyTorch's own anomaly mode does, where a gradient holds a NaN.
    """
    body = program.stages[-1].bound_symbols
    garbage = uninitialised(body)
    #: The values that a line takes in a box, by the names of the line's results.
    boxes: dict[tuple[str, ...], tuple[TensorProxy, ...]] = {}
    boxed: tuple[TensorProxy, ...] = ()
    for line in body:
        boxed = line.inputs if line.symbol is BOX else boxed
        if BOXED in line.args:
            boxes[_names(line)] = boxed
    #: By the name of a value with NaNs, the description of the line that made the first NaN.
    origins: dict[str, str] = {}
    #: By the name of an infinite value, the line that made the first infinity.
    infinite: dict[str, str] = {}

    def run(item: BoundSymbol, args: Any, kwargs: Any, values: Mapping[str, Any]) -> Any:
        if BOXED in item.args:
            read = dict(zip((proxy.name for proxy in boxes[_names(item)]), args[0], strict=True))
        else:
            read = {proxy.name: values[proxy.name] for proxy in item.inputs}
        before = next((name for name, value in read.items() if _has_nan(value)), "")
        ranges = _ranges(read)
        overflown = next((name for name in read if name in infinite), "")
        result = function_of(item)(*args, **kwargs)
        if any(map(_has_inf, tensors_in(result))):
            place = infinite.get(overflown) or _origin(item)
            infinite.update(dict.fromkeys(set(_names(item)) - garbage, place))
        if any(map(_has_nan, tensors_in(result))):
            if before:
                origin = origins.get(before) or _forward_origin(before, forward)
            else:
                origin = _describe(item, read, ranges)
                origin += f"\n  infinite since {infinite[overflown]}" if overflown else ""
            origins.update({name: origin for name in _names(item) if name not in garbage})
        return result

    with internals.autocast_off():
        gradients = walk(program, arguments, run)
    for proxy, gradient in zip(program.stages[-1].outputs, gradients, strict=True):
        if gradient is not None and proxy is not None and _has_nan(gradient):
            origin = origins.get(proxy.name) or _forward_origin(proxy.name, forward)
            raise RuntimeError(f"a gradient holds NaNs. The first come from {origin}")
    return gradients


def _describe(item: BoundSymbol, read: dict[str, Any], ranges: str) -> str:
    """Describe the line with the first NaN; of a region, the first operator with a NaN."""
    by = f"\n  run by: {item.implementation.owner}" if item.implementation else ""
    if item.subsymbols and item.fused_by:
        values = dict(read)
        for part in item.subsymbols:
            part_ranges = _ranges({proxy.name: values[proxy.name] for proxy in part.inputs})
            evaluate([part], values)
            if any(_has_nan(values[proxy.name]) for proxy in part.outputs):
                return _describe(part, values, part_ranges)
        return f"a region of {len(item.subsymbols)} operators, none of which makes any where PyTorch runs it{by}"
    return f"{_origin(item)}\n  line: {item!r}{by}\n  read: {ranges}"


def _origin(item: BoundSymbol) -> str:
    """Name the line of the forward that a line of the backward belongs to."""
    places = dict.fromkeys(
        f"the gradient of {_place(link.forward)}, by rule {link.rule}" for link in item.links
    )
    return "; ".join(places) or _place(item)


def _forward_origin(name: str, forward: Trace) -> str:
    """Name the origin of a value that holds NaNs when the backward begins."""
    maker = next(
        (line for line in forward.bound_symbols if any(p.name == name for p in line.outputs)),
        None,
    )
    if maker is None:
        return f"{name}, which the backward was given"
    return (
        f"the forward: {name}, a result of {_place(maker)}, holds NaNs before the backward begins"
    )


def _place(item: BoundSymbol) -> str:
    return f"{item.symbol.name} at {item.source}" if item.source else item.symbol.name


def _names(item: BoundSymbol) -> tuple[str, ...]:
    return tuple([proxy.name for proxy in item.outputs])


def _has_inf(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.isinf().any())


def _has_nan(tensor: torch.Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    return bool(tensor.isnan().any())


def _ranges(values: Mapping[str, Any]) -> str:
    """Describe each value by its least and its largest element."""
    texts = []
    for name, value in values.items():
        if value.numel() and not value.is_complex() and value.layout is torch.strided:
            texts.append(f"{name} from {value.min().item():.6g} to {value.max().item():.6g}")
    return ", ".join(texts) or "no numbers"
