"""Tags of lines and of their results, which say where the backward has a value from: recomputed or saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from switchgear_core import torch_private as internals
from switchgear_core.ir.aliasing import storages
from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BACKWARD, NAMED, BoundSymbol, changed
from switchgear_core.ir.trace import Trace
from switchgear_core.record.recorder import active_recorder
from switchgear_core.registry.hookspecs import PassContext, PassPlacement


def tagged(line: BoundSymbol, tag: str, *results: TensorProxy) -> BoundSymbol:
    """Tag a line, or some of its results.

    Args:
        line: a line of the forward.
        tag: `RECOMPUTE`, `SAVE` or `OFFLOAD`.
        results: results of the line; none for all.

    Returns:
        A new line.
    """
    tags = {f"{tag}:{proxy.name}" for proxy in results} or {tag}
    return changed(line, tags=line.tags | tags)


def checkpoint_name(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Name a value of a function, for `tag_names`; outside of a jitted function it does nothing.

    Args:
        tensor: a value that the function computes.
        name: the name, which several values may have.

    Returns:
        The tensor itself.
    """
    recorder = active_recorder()
    if recorder is None or recorder.tape.is_paused:
        return tensor
    with internals.DisableTorchFunction():
        proxy = recorder.tracker.proxy_of(recorder.adopted(tensor))
    for call in recorder.tape.frames:
        for index, line in enumerate(call.lines):
            if proxy in line.outputs:
                call.lines[index] = tagged(line, f"{NAMED}:{name}", proxy)
    return tensor


def tag_names(tag: str, *names: str, others: str = "") -> PassPlacement:
    """Return a pass that tags operators and values by their names.

    Args:
        tag: `RECOMPUTE`, `SAVE` or `OFFLOAD`.
        names: names of operators, such as "aten.mm.default" or "torch.nn.functional.gelu", and names given by
            `sg.checkpoint_name`.
        others: the tag of all other lines, if any: `SAVE` some and `RECOMPUTE` others.

    Returns:
        The pass, for `sg.jit(f, passes=[...])` or the hook `switchgear_passes`.
    """

    def run(trace: Trace, context: PassContext) -> Trace:
        lines = trace.bound_symbols
        roots = storages(lines)
        values = {
            roots.get(proxy.name, proxy.name) for line in lines for proxy in _named(line, names)
        }

        def line_of(line: BoundSymbol) -> BoundSymbol:
            if BACKWARD in line.tags:
                return line
            operators = {line.symbol.name, *(link.forward.symbol.name for link in line.links)}
            if not operators.isdisjoint(names):
                return tagged(line, tag)
            results = [proxy for proxy in line.outputs if proxy.name in values]
            rest = [proxy for proxy in line.outputs if proxy.name not in values]
            line = tagged(line, tag, *results) if results else line
            return tagged(line, others, *rest) if others and rest else line

        return replace(trace, bound_symbols=tuple(map(line_of, lines)))

    return PassPlacement(f"tag_{tag}", "after_grad", run)


def _named(line: BoundSymbol, names: tuple[str, ...]) -> Iterator[TensorProxy]:
    """Yield the results that have one of these names."""
    tags = line.tags.union(*(link.forward.tags for link in line.links))
    for proxy in line.outputs:
        if any(f"{NAMED}:{name}:{proxy.name}" in tags for name in names):
            yield proxy
