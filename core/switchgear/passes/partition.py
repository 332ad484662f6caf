"""Partition: the joint trace becomes a forward and a backward trace, and what the one saves for the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from switchgear.errors import NotDifferentiable
from switchgear.proxy import TensorProxy
from switchgear.rules import Grads
from switchgear.symbol import BACKWARD, BoundSymbol, Symbol, proxies
from switchgear.trace import Names, Trace, names_of

from .aliasing import aliased_argument, storages
from .dead_code import live
from .differentiate import Joint

_CLONE = Symbol("aten.clone.default", torch.ops.aten.clone.default)


@dataclass(frozen=True, slots=True, eq=False)
class Partitioned:
    """`forward` returns its outputs and then `saved`, some as copies; `backward` takes `saved` and the grad outputs.

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
    trace, outputs, grads = joint.trace, joint.trace.outputs[: joint.count], joint.trace.outputs[joint.count :]
    given = tuple(proxies(joint.grad_outputs))
    body = live(tuple(item for item in trace.bound_symbols if BACKWARD not in item.tags), proxies(outputs))
    rest, crossing = _backward(trace, body, given, grads)
    names, storage = Names(names_of(trace)), storages(body)
    copies = {p.name: replace(p, name=names.fresh()) for p in crossing if storage.get(p.name, p.name) in overwritten}
    clones = (BoundSymbol(_CLONE, (p,), {}, copies[p.name]) for p in crossing if p.name in copies)
    forward = replace(
        trace,
        name="forward",
        inputs=trace.inputs[: len(trace.inputs) - len(given)],
        outputs=(*outputs, *(copies.get(proxy.name, proxy) for proxy in crossing)),
        bound_symbols=(*(_unlinked(item) for item in body), *clones),
    )
    backward = replace(trace, name="backward", inputs=(*crossing, *given), outputs=grads, bound_symbols=rest)
    return Partitioned(forward, backward, crossing)


def backward_for(joint: Joint, saved: tuple[TensorProxy, ...]) -> Trace:
    """The backward of another joint trace of the same forward, from what that forward saves.

    Raises `NotDifferentiable` if it needs more than was saved.
    """
    again = partition(joint)
    known = {proxy.name for proxy in saved}
    missing = [proxy.name for proxy in again.saved if proxy.name not in known]
    if missing:
        raise NotDifferentiable(
            f"this backward needs values that the forward did not save ({', '.join(missing)}), because "
            "other grad outputs are defined than expected; give a gradient for every output, or return "
            "only the one that is differentiated"
        )
    return replace(again.backward, inputs=(*saved, *proxies(joint.grad_outputs)))


def _backward(
    trace: Trace, forward: tuple[BoundSymbol, ...], given: tuple[TensorProxy, ...], grads: Grads
) -> tuple[tuple[BoundSymbol, ...], tuple[TensorProxy, ...]]:
    """The bound symbols that only gradients need, and the values that they take from the forward."""
    ran = frozenset(forward)
    rest = tuple(item for item in trace.bound_symbols if item not in ran)
    body = live(rest, proxies(grads))
    body = (*_views_again(forward, body, grads), *body)
    own = {proxy.name for proxy in given}.union(trace.constants, (p.name for item in body for p in item.outputs))
    used = (*(proxy for item in body for proxy in item.inputs), *proxies(grads))
    return body, tuple({proxy.name: proxy for proxy in used if proxy.name not in own}.values())


def _views_again(
    forward: tuple[BoundSymbol, ...], body: tuple[BoundSymbol, ...], grads: Grads
) -> tuple[BoundSymbol, ...]:
    """The forward's views that the backward reads, to be made there again: of each storage one tensor is saved."""
    read = {proxy.name for item in body for proxy in item.inputs}.union(proxy.name for proxy in proxies(grads))
    again: list[BoundSymbol] = []
    for item in reversed(forward):
        if item.is_leaf and aliased_argument(item) is not None and not read.isdisjoint(p.name for p in item.outputs):
            read.update(proxy.name for proxy in item.inputs)
            again.append(item)
    return tuple(reversed(again))


def _unlinked(item: BoundSymbol) -> BoundSymbol:
    return replace(item, links=(), subsymbols=tuple(_unlinked(part) for part in item.subsymbols))
