"""Partition: the joint trace becomes a forward and a backward trace, and what the one saves for the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from switchgear.aliasing import aliased_argument, storages
from switchgear.errors import NotDifferentiable
from switchgear.proxy import TensorProxy
from switchgear.rules import Grads
from switchgear.symbol import BACKWARD, INNER_GRADIENT, BoundSymbol, Symbol, proxies
from switchgear.trace import Names, Trace, names_of

from .dead_code import live
from .differentiate import Joint
from .recompute import recompute

_CLONE = Symbol("aten.clone.default", torch.ops.aten.clone.default)


@dataclass(frozen=True, slots=True, eq=False)
class Partitioned:
    """`forward` returns its outputs and then `saved`, some as copies; `backward` takes `saved` and the grad outputs.

    Numbers are not saved: a trace is specialised on its sizes, so they stand in the backward as they are.
    """

    forward: Trace
    backward: Trace
    saved: tuple[TensorProxy, ...]


def partition(
    joint: Joint, overwritten: frozenset[str] = frozenset(), known: frozenset[str] | None = None
) -> Partitioned:
    """Split a joint trace: what the outputs need is forward, the rest is backward, and what crosses is saved.

    `overwritten` names the inputs that are written to after the forward has run; they, and what shares their storage,
    are saved as copies. `known` are the names of what is saved, if that is decided already.
    """
    trace, outputs, grads = joint.trace, joint.trace.outputs[: joint.count], joint.trace.outputs[joint.count :]
    given = tuple(proxies(joint.grad_outputs))
    body = live(tuple(item for item in trace.bound_symbols if BACKWARD not in item.tags), proxies(outputs))
    ran = frozenset(body)
    rest = tuple(item for item in trace.bound_symbols if item not in ran)
    names = Names(names_of(trace))
    body, rest = recompute(body, live(rest, proxies(grads)), tuple(proxies(grads)), names, known)
    made = {proxy.name for proxy in trace.inputs}.union(proxy.name for item in body for proxy in item.outputs)
    kept = tuple([proxy for proxy in joint.kept if proxy.name in made])
    rest, crossing = _backward(trace, body, rest, given, grads, kept, known or frozenset())
    storage = storages(body)
    copies = {p.name: replace(p, name=names.fresh()) for p in crossing if storage.get(p.name, p.name) in overwritten}
    clones = (BoundSymbol(_CLONE, (p,), {}, copies[p.name]) for p in crossing if p.name in copies)
    forward = replace(
        trace,
        name="forward",
        inputs=trace.inputs[: len(trace.inputs) - len(given)],
        outputs=(*outputs, *(copies.get(proxy.name, proxy) for proxy in crossing)),
        bound_symbols=(*(unlinked(item) for item in body), *clones),
    )
    backward = replace(trace, name="backward", inputs=(*crossing, *given), outputs=grads, bound_symbols=rest)
    return Partitioned(forward, backward, crossing)


def backward_for(joint: Joint, saved: tuple[TensorProxy, ...]) -> Trace:
    """The backward of another joint trace of the same forward, from what that forward saves.

    What it needs beyond that is computed again. Raises `NotDifferentiable` if that cannot be.
    """
    again = partition(replace(joint, kept=()), known=frozenset(proxy.name for proxy in saved))
    known = {proxy.name for proxy in saved}.union(joint.trace.constants)
    missing = {proxy.name for proxy in again.saved} - known
    repeated: list[BoundSymbol] = []
    for item in reversed(again.forward.bound_symbols if missing else ()):
        if not missing.isdisjoint(proxy.name for proxy in item.outputs) and not item.is_random:
            missing.difference_update(proxy.name for proxy in item.outputs)
            missing.update({proxy.name for proxy in item.inputs} - known)
            repeated.append(item)
    if missing:
        raise NotDifferentiable(
            f"this backward needs values that the forward did not save ({', '.join(sorted(missing))}), because other "
            "grad outputs are defined than expected, or because the derivative of a grad rule is taken; give a "
            "gradient for every output, or use sg.grad"
        )
    made = {proxy.name for item in repeated for proxy in item.outputs}
    # a view that the backward reads stands there already
    rest = (item for item in again.backward.bound_symbols if made.isdisjoint(p.name for p in item.outputs))
    body = (*reversed(repeated), *rest)
    inputs = (*saved, *proxies(joint.grad_outputs))
    return replace(again.backward, inputs=inputs, bound_symbols=body)


def _backward(
    trace: Trace,
    forward: tuple[BoundSymbol, ...],
    body: tuple[BoundSymbol, ...],
    given: tuple[TensorProxy, ...],
    grads: Grads,
    kept: tuple[TensorProxy, ...],
    known: frozenset[str],
) -> tuple[tuple[BoundSymbol, ...], tuple[TensorProxy, ...]]:
    """The bound symbols that only gradients need, views among them, and the values to take from the forward."""
    body = (*_views_again(forward, body, (*grads, *kept), known), *body)
    own = {proxy.name for proxy in given}.union(trace.constants, (p.name for item in body for p in item.outputs))
    used = (*(proxy for item in body for proxy in item.inputs), *proxies(grads), *kept)
    crossing = tuple({proxy.name: proxy for proxy in used if proxy.name not in own}.values())
    return (live(body, proxies(grads)) if kept else body), crossing


def _views_again(
    forward: tuple[BoundSymbol, ...], body: tuple[BoundSymbol, ...], grads: Grads, known: frozenset[str]
) -> tuple[BoundSymbol, ...]:
    """The forward's views that the backward reads, to be made there again: of each storage one tensor is saved.

    Those that are saved themselves, `known`, are not; nor is one that requires grad where its base does not (after a
    write that autograd did not see): made again it would have no history for a second derivative.
    """
    read = {proxy.name for item in body for proxy in item.inputs}.union(proxy.name for proxy in proxies(grads))
    again: list[BoundSymbol] = []
    for item in reversed(forward):
        read -= known
        base = aliased_argument(item) if item.is_leaf else None
        if base is None or read.isdisjoint(p.name for p in item.outputs):
            continue
        if base.requires_grad or not any(p.requires_grad for p in item.outputs):
            read.update(proxy.name for proxy in item.inputs)
            again.append(item)
    return tuple(reversed(again))


def unlinked(item: BoundSymbol) -> BoundSymbol:
    """A line of the forward: only those that are gradients themselves keep their links."""
    links = item.links if INNER_GRADIENT in item.tags else ()
    return replace(item, links=links, subsymbols=tuple(unlinked(part) for part in item.subsymbols))
