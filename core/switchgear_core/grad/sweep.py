"""The backward sweep: the linearisations of a forward in reverse, and the resulting gradients."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import NotDifferentiable
from switchgear_core.ir.proxy import TensorProxy, is_dense
from switchgear_core.ir.symbol import BACKWARD, INNER_GRADIENT, BoundSymbol, Link, Symbol, changed
from switchgear_core.ir.writes import RESTRIDE
from switchgear_core.record.doors import Doors
from switchgear_core.record.refused_writes import INVERSES
from switchgear_core.registry.rules import Grads, Pull

ADD = Symbol("aten.add.Tensor", torch.ops.aten.add.Tensor)


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """One differentiated bound symbol: `pull` gives its part of the backward and a gradient per tensor argument."""

    arguments: tuple[TensorProxy, ...]
    outputs: tuple[TensorProxy, ...]
    pull: Pull
    link: Link


def refusing(item: BoundSymbol, link: Link, error: NotDifferentiable) -> Linear:
    """Return a linearisation of a call without derivative: an arriving gradient raises."""

    def pull(grads: Grads) -> tuple[tuple[BoundSymbol, ...], Grads]:
        raise error

    return Linear(item.inputs, item.outputs, pull, link)


def sweep(
    linears: list[Linear],
    outputs: Grads,
    cotangents: Grads,
    doors: Doors,
    intermediates: frozenset[str] = frozenset(),
) -> tuple[list[BoundSymbol], dict[str, TensorProxy]]:
    """Return the backward, and the gradients of the inputs and of the `intermediates`, by name.

    The backward is the same as autograd's in the current autocast region, if any.
    """
    backward: list[BoundSymbol] = []
    grads: dict[str, TensorProxy] = {}
    links: defaultdict[str, tuple[Link, ...]] = defaultdict(tuple)

    def accumulate(name: str, grad: TensorProxy, *new: Link) -> None:
        links[name] += new
        if name in grads:
            backward.extend(_sum(grads[name], grad, doors, links[name]))
            grad = backward[-1].outputs[0]
        grads[name] = grad

    for proxy, cotangent in zip(outputs, cotangents, strict=True):
        if proxy is not None and cotangent is not None:
            accumulate(proxy.name, cotangent)
    for linear in reversed(linears):
        names = [proxy.name for proxy in linear.outputs]
        incoming = tuple(
            [grads.get(name) if name in intermediates else grads.pop(name, None) for name in names]
        )
        if not any(incoming):
            continue
        writes = linear.link.forward.symbol.fn in INVERSES
        if writes:
            incoming = (_laid_out(incoming[0], linear, backward, doors),)
        body, input_grads = linear.pull(incoming)
        backward.extend(linked(item, linear.link, BACKWARD) for item in body)
        for index, (proxy, grad) in enumerate(zip(linear.arguments, input_grads, strict=True)):
            if grad is not None and proxy.requires_grad:
                conversion = _converted(grad, proxy.dtype, writes and index == 1, doors)
                if conversion:
                    backward.extend(linked(item, linear.link, BACKWARD) for item in conversion)
                    grad = backward[-1].outputs[0]
                accumulate(proxy.name, grad, linear.link)
    return backward, grads


def _laid_out(
    grad: TensorProxy | None, write: Linear, backward: list[BoundSymbol], doors: Doors
) -> TensorProxy | None:
    """Return the gradient of a base written through a view, in the base's strides, as autograd copies it."""
    (base,) = write.outputs
    if grad is None or grad.stride == base.stride:
        return grad
    copy = base.fresh(doors.recorder.tape.names.fresh())
    line = BoundSymbol(RESTRIDE, (grad, base.stride), {}, copy, grad_enabled=False)
    backward.append(linked(line, write.link, BACKWARD))
    return copy


def _converted(
    grad: TensorProxy, dtype: torch.dtype, copies: bool, doors: Doors
) -> tuple[BoundSymbol, ...]:
    """Return lines that convert `grad` as the autograd engine does.

    Under autocast the result has the dtype of its value. The written part of a base is copied contiguously.
    """
    if grad.dtype == dtype and not copies:
        return ()
    with doors.open(), internals.DisableTorchFunction(), torch.no_grad():
        tracker = doors.recorder.tracker
        tensor = tracker.wrapper_for(grad).to(dtype)
        tracker.proxy_of(tensor.contiguous() if copies else tensor)
    return doors.recorder.tape.take()


def linked(item: BoundSymbol, link: Link, *tags: str) -> BoundSymbol:
    """Return a bound symbol and its parts, linked to their forward line."""
    parts = tuple([linked(part, link, *tags) for part in item.subsymbols])
    source = item.source or link.forward.source
    links = item.links if INNER_GRADIENT in item.tags else (link,)
    return changed(
        item, links=links or (link,), source=source, subsymbols=parts, tags=item.tags.union(tags)
    )


def _sum(
    first: TensorProxy, second: TensorProxy, doors: Doors, links: tuple[Link, ...]
) -> list[BoundSymbol]:
    """Return the lines of `left + right`, as the autograd engine accumulates."""
    same = (first.shape, first.stride, first.dtype, first.device) == (
        second.shape,
        second.stride,
        second.dtype,
        second.device,
    )
    if not same or not is_dense(first):
        with doors.open(), internals.DisableTorchFunction(), torch.no_grad():
            tracker = doors.recorder.tracker
            tracker.proxy_of(tracker.wrapper_for(first) + tracker.wrapper_for(second))
        lines = doors.recorder.tape.take()
    else:
        output = first.fresh(doors.recorder.tape.names.fresh())
        source = links[-1].forward.source if links else None
        lines = (BoundSymbol(ADD, (first, second), {}, output, source=source, grad_enabled=False),)
    return [changed(item, links=links, tags=frozenset({BACKWARD})) for item in lines]
