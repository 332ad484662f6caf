"""Whether two captures of one function came to the same, so that what set their calls apart does not matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from switchgear.capture.guards import value_key
from switchgear.capture.outputs import Outputs
from switchgear.capture.session import Captured
from switchgear.capture.signature import Argument, Closure, Held, InputSource
from switchgear.capture.sizes import Sizes
from switchgear.ir.composites import leaves_of
from switchgear.ir.proxy import TensorProxy
from switchgear.ir.trace import Trace


def same_program(one: Captured, other: Captured) -> bool:
    """Whether two traces compute the same of the same inputs, and their calls end in the same way."""
    return (
        _same_sizes(one.sizes, other.sizes)
        and one.trace.canonical() == other.trace.canonical()
        and _marks(one.trace) == _marks(other.trace)
        and _same_constants(one.trace.tensors, other.trace.tensors)
        and len(one.sources) == len(other.sources)
        and all(map(_same_source, one.sources, other.sources))
        and _same_outputs(one.outputs, other.outputs)
        and one.after == other.after
        and _identical(one) == _identical(other)
        and (one.objects, one.modules) == (other.objects, other.modules)
    )


def _marks(trace: Trace) -> list[object]:
    """What is not printed of inputs and lines, and matters to gradients and to what is saved for them."""
    lines = (*trace.bound_symbols, *leaves_of(trace.bound_symbols))
    marks = [(line.grad_enabled, line.tags, _requires_grad(line.outputs)) for line in lines]
    return [_requires_grad(trace.inputs), *marks]


def _requires_grad(values: Iterable[TensorProxy]) -> list[bool]:
    return [value.requires_grad for value in values]


def _identical(captured: Captured) -> list[tuple[int, int]]:
    return [
        (place, same if isinstance(same, int) else id(same())) for place, same in captured.identical
    ]


def _same_sizes(one: Sizes | None, other: Sizes | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.numbers, one.constraints) == (other.numbers, other.constraints)


def _same_constants(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        tensor.dtype == other[name].dtype and torch.equal(tensor, other[name])
        for name, tensor in one.items()
    )


def _same_source(one: InputSource, other: InputSource) -> bool:
    if isinstance(one, Closure) and isinstance(other, Closure):
        return one.tensor is other.tensor
    if isinstance(one, Held) and isinstance(other, Held):
        same_owner = one.owner is other.owner or (
            isinstance(one.owner, Argument) and one.owner == other.owner
        )
        return same_owner and one.steps == other.steps and not one.tied and not other.tied
    return one == other


def _same_outputs(one: Outputs, other: Outputs) -> bool:
    """Whether calls end in the same way."""
    lines = [
        [
            (line.symbol, line.args, {**line.kwargs}, line.output)
            for line in (*made.metadata, *made.views)
        ]
        for made in (one, other)
    ]
    if lines[0] != lines[1] or one.roots != other.roots:
        return False
    values = [
        [replace(item, value=value_key(item.value)) for item in outputs.returned]
        for outputs in (one, other)
    ]
    proxies = [[proxy.name for proxy in outputs.proxies] for outputs in (one, other)]
    return (
        values[0] == values[1]
        and proxies[0] == proxies[1]
        and (one.spec, one.mutations) == (other.spec, other.mutations)
    )
