"""Composites: conditions to keep a torch-level call whole, and its parts."""

from __future__ import annotations

import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from switchgear_core.ir.proxy import TensorProxy
from switchgear_core.ir.symbol import BoundSymbol, changed, proxies, renamed


def is_closed(
    arguments: object,
    recorded: list[BoundSymbol],
    output: object,
    constants: Mapping[str, torch.Tensor],
) -> bool:
    """Check whether a call's parts read only its arguments, and make all its outputs, each different."""
    if output is NotImplemented:
        return False
    values = {proxy.name for proxy in proxies(arguments)} | constants.keys()
    results: set[str] = set()
    for part in recorded:
        if not values.issuperset(proxy.name for proxy in part.inputs):
            return False
        outputs = {proxy.name for proxy in part.outputs}
        values |= outputs
        results |= outputs
    names = [proxy.name for proxy in proxies(output)]
    return bool(names) and len(set(names)) == len(names) and results.issuperset(names)


def read_first_views(
    lines: list[BoundSymbol], arguments: Sequence[TensorProxy], views: Mapping[str, object]
) -> list[BoundSymbol]:
    """Return the parts of a call, with each view read where it was first made; `views` maps views to their calls.

    Functionalization recreates views of a written or replaced value before they are read: later than in eager, where
    gradients are summed in the order of the calls.
    """
    unread: dict[str, list[TensorProxy]] = {}
    first: dict[str, TensorProxy] = {}

    def read(proxy: TensorProxy) -> TensorProxy:
        if proxy.name in views and proxy.name not in first:
            alike = unread.get(str(views[proxy.name]), [])
            same = [twin for twin in alike if replace(twin, name=proxy.name) == proxy]
            view = proxy if proxy in arguments or not same else same[0]
            first[proxy.name] = view
            if view in alike:
                alike.remove(view)
        return first.get(proxy.name, proxy)

    parts: list[BoundSymbol] = []
    for proxy in arguments:
        if proxy.name in views:
            unread.setdefault(str(views[proxy.name]), []).append(proxy)
    for line in lines:
        new_views = [proxy for proxy in line.outputs if proxy.name in views]
        for proxy in new_views:
            unread.setdefault(str(views[proxy.name]), []).append(proxy)
        env = {} if new_views else {proxy.name: read(proxy) for proxy in line.inputs}
        moved = any(proxy.name != name for name, proxy in env.items())
        parts.append(renamed(line, env) if moved else line)
    return parts


def unread_views(
    lines: Sequence[BoundSymbol], output: object, views: Container[str]
) -> tuple[list[BoundSymbol], list[BoundSymbol]]:
    """Return the views among a call's parts that are neither read nor returned, and the other parts.

    Functionalization created these views of tensors written before the call, which may be whole without them.
    """
    read = {proxy.name for proxy in proxies(output)}
    unread: list[BoundSymbol] = []
    rest: list[BoundSymbol] = []
    for line in reversed(lines):
        names = {proxy.name for proxy in line.outputs}
        if names and read.isdisjoint(names) and all(name in views for name in names):
            unread.append(line)
        else:
            rest.append(line)
            read.update(proxy.name for proxy in line.inputs)
    inside = {proxy.name for line in rest for proxy in line.outputs}
    if any(proxy.name in inside for line in unread for proxy in line.inputs):
        return [], [*lines]
    return unread[::-1], rest[::-1]


def splice_escaping(
    recorded: tuple[BoundSymbol, ...], outputs: Iterable[TensorProxy]
) -> tuple[BoundSymbol, ...]:
    """Replace a composite by its parts if another line reads a value that the composite does not return."""
    needed = {proxy.name for proxy in outputs}
    lines: list[BoundSymbol] = []
    pending = list(recorded)
    while pending:
        bound_symbol = pending.pop()
        if bound_symbol.subsymbols:
            inner = {
                proxy.name for leaf in leaves_of(bound_symbol.subsymbols) for proxy in leaf.outputs
            }
            if not needed.isdisjoint(inner - {proxy.name for proxy in bound_symbol.outputs}):
                pending.extend(bound_symbol.subsymbols)
                continue
            parts = splice_escaping(bound_symbol.subsymbols, bound_symbol.outputs)
            bound_symbol = changed(bound_symbol, subsymbols=parts)
        needed.update(proxy.name for proxy in bound_symbol.inputs)
        lines.append(bound_symbol)
    return tuple(reversed(lines))


def leaves_of(bound_symbols: Iterable[BoundSymbol]) -> Iterator[BoundSymbol]:
    """Yield the leaves of bound symbols, in order."""
    for item in bound_symbols:
        if item.is_leaf:
            yield item
        else:
            yield from leaves_of(item.subsymbols)


def bind_outputs(output: Any, result: Any, values: dict[str, object]) -> None:
    """Add the results of a call to `values`, by the names of its outputs."""
    if isinstance(output, TensorProxy):
        values[output.name] = result
    elif isinstance(output, tuple):
        for part, value in zip(output, result, strict=True):
            bind_outputs(part, value, values)


def turns_grad_off(fn: Callable[..., object] | None, recorded: Iterable[BoundSymbol]) -> bool:
    """Check whether a C++ function of PyTorch turned grad mode off for a part through which gradients might flow.

    In-place writes there appear in no wrapper, so the parts cannot be differentiated separately.
    """
    return isinstance(fn, types.BuiltinFunctionType | types.MethodDescriptorType) and any(
        part.is_leaf
        and not part.grad_enabled
        and any(proxy.requires_grad for proxy in part.inputs)
        and any(proxy.is_differentiable for proxy in part.outputs)
        for part in recorded
    )
