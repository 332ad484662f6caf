"""Partition: the joint trace becomes a forward and a backward trace, and what the one saves for the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from switchgear.errors import NotDifferentiable
from switchgear.proxy import TensorProxy
from switchgear.symbol import BACKWARD, BoundSymbol, Symbol
from switchgear.trace import Names, Trace, names_of

from .aliasing import Storages, aliased_argument
from .dead_code import live
from .differentiate import Joint

_CLONE = Symbol("aten.clone.default", torch.ops.aten.clone.default)


@dataclass(frozen=True, slots=True, eq=False)
class Partitioned:
    """`forward` returns its outputs and then `saved`; `backward` takes `saved` and then the defined grad outputs.

    Numbers are not saved: a trace is specialised on its sizes, so they stand in the backward as they are.
    """

    forward: Trace
    backward: Trace
    saved: tuple[TensorProxy, ...]


def partition(joint: Joint, overwritten: frozenset[str] = frozenset()) -> Partitioned:
    """Split a joint trace: what the outputs need is forward, the rest is backward, and what crosses is saved.

    `overwritten` names the inputs that are written to after the forward has run; they, and what shares their storage,
    are saved as copies.
    """
    trace = joint.trace
    outputs = trace.outputs[: joint.count]
    grads = trace.outputs[joint.count :]
    forward_body = live(
        tuple(item for item in trace.bound_symbols if BACKWARD not in item.tags),
        [proxy for proxy in outputs if proxy is not None],
    )
    given = tuple(proxy for proxy in joint.grad_outputs if proxy is not None)
    body, crossing = _backward(trace, forward_body, given, grads)
    forward_body = tuple(_unlinked(item) for item in forward_body)
    names = Names(names_of(trace))
    storages = Storages(forward_body)
    copies = {proxy.name: replace(proxy, name=names.fresh()) for proxy in crossing if storages.of(proxy) in overwritten}
    saved = tuple(copies.get(proxy.name, proxy) for proxy in crossing)
    cloned = tuple(BoundSymbol(_CLONE, (p,), {}, copies[p.name]) for p in crossing if p.name in copies)
    inputs = trace.inputs[: len(trace.inputs) - len(given)]
    forward = Trace("forward", inputs, (*outputs, *saved), (*forward_body, *cloned), trace.constants, trace.provenance)
    backward = Trace("backward", (*crossing, *given), grads, body, trace.constants, trace.provenance)
    return Partitioned(forward, backward, saved)


def backward_for(joint: Joint, forward: Partitioned) -> Trace:
    """The backward of another joint trace of the same forward, from what that forward saves.

    Raises `NotDifferentiable` if it needs more than was saved.
    """
    again = partition(joint)
    original = forward.backward.inputs[: len(forward.saved)]
    known = {proxy.name for proxy in original}
    count = len(again.saved)
    missing = [proxy.name for proxy in again.backward.inputs[:count] if proxy.name not in known]
    if missing:
        raise NotDifferentiable(
            f"this backward needs values that the forward did not save ({', '.join(missing)}), because "
            "other grad outputs are defined than expected; give a gradient for every output, or return "
            "only the one that is differentiated"
        )
    return replace(again.backward, inputs=(*original, *again.backward.inputs[count:]))


def _backward(
    trace: Trace,
    forward: tuple[BoundSymbol, ...],
    given: tuple[TensorProxy, ...],
    grads: tuple[TensorProxy | None, ...],
) -> tuple[tuple[BoundSymbol, ...], tuple[TensorProxy, ...]]:
    """The bound symbols that only gradients need, and the values that they take from the forward."""
    made = {proxy.name for item in forward for proxy in item.outputs}
    rest = tuple(item for item in trace.bound_symbols if not any(proxy.name in made for proxy in item.outputs))
    body = live(rest, [grad for grad in grads if grad is not None])
    body = (*_views_again(forward, body, grads), *body)
    own = {proxy.name for item in body for proxy in item.outputs} | {proxy.name for proxy in given}
    crossing: dict[str, TensorProxy] = {}
    used = [proxy for item in body for proxy in item.inputs] + [grad for grad in grads if grad is not None]
    for proxy in used:
        if proxy.name not in own and proxy.name not in trace.constants:
            crossing.setdefault(proxy.name, proxy)
    return body, tuple(crossing.values())


def _views_again(
    forward: tuple[BoundSymbol, ...], body: tuple[BoundSymbol, ...], grads: tuple[TensorProxy | None, ...]
) -> tuple[BoundSymbol, ...]:
    """The forward's views that the backward reads, to be made there again: of each storage one tensor is saved."""
    read = {proxy.name for item in body for proxy in item.inputs} | {grad.name for grad in grads if grad is not None}
    again: list[BoundSymbol] = []
    for item in reversed(forward):
        if item.is_leaf and aliased_argument(item) is not None and not read.isdisjoint(p.name for p in item.outputs):
            read.update(proxy.name for proxy in item.inputs)
            again.append(item)
    return tuple(reversed(again))


def _unlinked(item: BoundSymbol) -> BoundSymbol:
    return replace(item, links=(), subsymbols=tuple(_unlinked(part) for part in item.subsymbols))
