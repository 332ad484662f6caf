"""Partition: the joint trace becomes a forward and a backward trace, connected by saved tensors.

Lines needed by the outputs, and all random draws, are forward; the rest is backward. An input that the epilogue
overwrites is saved as a copy, and so is an input in the same storage, because both share a version.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

import torch

from switchgear_core.errors import NotDifferentiable
from switchgear_core.grad.differentiate import Joint
from switchgear_core.grad.recompute import links_again, recompute
from switchgear_core.ir.aliasing import is_view, storages
from switchgear_core.ir.dead_code import live
from switchgear_core.ir.proxy import NumberProxy, TensorProxy
from switchgear_core.ir.symbol import (
    BACKWARD,
    INNER_GRADIENT,
    RECOMPUTED,
    BoundSymbol,
    RuleOrigin,
    Symbol,
    changed,
    proxies,
    region_of,
)
from switchgear_core.ir.trace import Names, Trace, names_of
from switchgear_core.registry.savings import OF_EAGER, Body, Problem, Savings

_CLONE = Symbol("aten.clone.default", torch.ops.aten.clone.default)
#: Rules that choose their residuals; with a transform, the forward part is unknown.
_CHOOSING = frozenset({"augmented", "pullback"})


@dataclass(frozen=True, slots=True, eq=False)
class Partitioned:
    """`forward` returns its outputs and then `saved`, some as copies; `backward` takes `saved` and the grad outputs.

    Numbers are no tensors: fixed sizes are constants of the backward, symbolic sizes further inputs. `unpacked` are
    lines restoring values saved in another form. `overwritten` names the values saved as copies.
    """

    forward: Trace
    backward: Trace
    saved: tuple[TensorProxy, ...]
    unpacked: tuple[BoundSymbol, ...]
    overwritten: frozenset[str]
    #: Returns why a value is saved, from the value and its line.
    reason: Callable[[TensorProxy, BoundSymbol], str]

    @property
    def saved_bytes(self) -> int:
        """The saved bytes, without inputs and constants (alive anyway)."""
        alive = {proxy.name for proxy in self.forward.inputs} - self.overwritten
        alive.update(self.forward.tensors)
        return sum(proxy.bytes for proxy in self.saved if proxy.name not in alive)


def partition(
    joint: Joint,
    overwritten: frozenset[str] = frozenset(),
    savings: Savings = OF_EAGER,
    fuses: bool = False,
    eager_bytes: Callable[[], int] | None = None,
) -> Partitioned:
    """Split a joint trace: lines needed by the outputs are forward, the rest is backward, and values between are saved.

    Args:
        joint: the joint trace.
        overwritten: the names of the inputs that are written to after the forward. They, and values that share their
            storage, are saved as copies.
        savings: chooses the saved values.
        fuses: whether an executor of the call fuses lines.
        eager_bytes: returns the bytes saved by eager mode; by default those that this trace would save as in eager
            mode.
    """
    residuals = _residuals(joint)
    halves = _Halves(joint, frozenset({*residuals, *(proxy.name for proxy in joint.residuals)}))
    forward, outputs = halves.forward, joint.trace.outputs[: joint.count]
    copied = overwritten_values(forward, overwritten)
    eager = eager_bytes or (lambda: partition(joint, overwritten).saved_bytes)
    rest = copied, residuals, halves.names, fuses, eager
    saving = savings.choose(
        Problem(joint.trace, joint.count, forward, halves.later, halves.read, *rest)
    )
    replay, values = recomputed(saving.body, halves.read, saving.saved)
    uses = (proxy.name for item in (*replay, *halves.later) for proxy in item.inputs)
    values = {name: values[name] for name in dict.fromkeys((*uses, *values)) if name in values}
    copies: dict[str, BoundSymbol] = {}
    unpacked: list[BoundSymbol] = []
    saved: list[TensorProxy] = []
    for proxy in values.values():
        if proxy.name in saving.packed:
            copies[proxy.name], unpack = saving.packed[proxy.name]
            unpacked.append(unpack)
            (proxy,) = unpack.inputs
        elif proxy.name in copied:
            twin = replace(proxy, name=halves.names.fresh())
            copies[proxy.name] = BoundSymbol(_CLONE, (proxy,), {}, twin)
        saved.append(proxy)
    ends = (copies[p.name].output if p.name in copies else p for p in values.values())
    inputs = joint.trace.inputs[: len(joint.trace.inputs) - len(halves.grad_outputs)]
    trace = replace(joint.trace, name="forward", inputs=inputs, outputs=(*outputs, *ends))
    trace = replace(trace, bound_symbols=(*map(unlinked, forward), *copies.values()))
    backward = halves.backward((*unpacked, *replay), tuple(saved))
    return Partitioned(trace, backward, tuple(saved), tuple(unpacked), copied, saving.reason)


def backward_for(joint: Joint, parts: Partitioned) -> Trace:
    """Return the backward of another joint trace of the same forward, from the saved tensors of that forward.

    Other values are recomputed.

    Raises:
        NotDifferentiable: a value can be neither read nor recomputed.
    """
    saved_names = frozenset(
        proxy.name
        for proxy in (*parts.saved, *(p for item in parts.unpacked for p in item.outputs))
    )
    halves = _Halves(replace(joint, residuals=()), saved_names, saved_names)
    replay, missing = recomputed(halves.forward, halves.read, saved_names)
    missing = {name: proxy for name, proxy in missing.items() if name not in saved_names}
    if missing:
        raise NotDifferentiable(
            f"this backward needs values that the forward did not save ({', '.join(sorted(missing))}): other "
            "grad outputs are defined than expected, or a grad rule is differentiated that did not save the values "
            "it reads; give a gradient for every output, let the rule save it, or use sg.grad"
        )
    # a line recomputed for one of its results computes the others too
    twice = {proxy.name for item in replay for proxy in item.outputs if proxy.name in saved_names}
    saved = [replace(p, name=halves.names.fresh()) if p.name in twice else p for p in parts.saved]
    unpacked = [item for item in parts.unpacked if item.outputs[0].name not in twice]
    return halves.backward((*unpacked, *replay), tuple(saved))


def overwritten_values(forward: Iterable[BoundSymbol], inputs: frozenset[str]) -> frozenset[str]:
    """Return the names of inputs, and of all values in their storage."""
    return inputs.union(name for name, first in storages(forward).items() if first in inputs)


def _residuals(joint: Joint) -> dict[str, RuleOrigin]:
    """Return the residuals of grad rules: earlier values that their backwards read, each with the rule's origin."""
    lines = joint.trace.bound_symbols
    before = (item for item in lines if BACKWARD not in item.tags and not region_of(item))
    results = {proxy.name for item in before for proxy in item.outputs}
    later = (item for item in lines if BACKWARD in item.tags)
    return {
        proxy.name: link.rule
        for item in later
        for link in item.links
        if link.rule.form in _CHOOSING
        for proxy in item.inputs
        if proxy.name in results
    }


class _Halves:
    """A joint trace, split: `read` are the values of `forward`, including inputs, read by `later` or the gradients.

    The forward also computes the values in `required`. `saved_names` are its saved tensors, if decided already.
    """

    def __init__(
        self, joint: Joint, required: frozenset[str], saved_names: frozenset[str] | None = None
    ) -> None:
        trace = self.trace = joint.trace
        self.grads = trace.outputs[joint.count :]
        grads = tuple(proxies(self.grads))
        self.grad_outputs = tuple(proxies(joint.grad_outputs))
        body = tuple(item for item in trace.bound_symbols if BACKWARD not in item.tags)
        also = (proxy for item in body for proxy in item.outputs if proxy.name in required)
        body = live(body, (*proxies(trace.outputs[: joint.count]), *also))
        ran = frozenset(body)
        rest = live(tuple(item for item in trace.bound_symbols if item not in ran), grads)
        self.names = Names(names_of(trace))
        self.forward, self.later = recompute(body, rest, grads, self.names, saved_names)
        results = {proxy.name for item in self.forward for proxy in item.outputs}
        results.update(proxy.name for proxy in trace.inputs)
        later_results = {proxy.name for item in self.later for proxy in item.outputs}
        later_results.update(trace.tensors, (proxy.name for proxy in self.grad_outputs))
        operands = (*(proxy for item in self.later for proxy in item.inputs), *grads)
        read = (*operands, *(proxy for proxy in joint.residuals if proxy.name in results))
        self.read = tuple({p.name: p for p in read if p.name not in later_results}.values())

    def backward(self, replay: Body, saved: tuple[TensorProxy, ...]) -> Trace:
        """Return the backward that takes `saved`, and recomputes the needed lines of `replay`."""
        body = _just_in_time(live((*replay, *self.later), proxies(self.grads)))
        inputs = (*saved, *self.grad_outputs)
        numbers = tuple(NumberProxy(number.name) for number in self.trace.numbers)
        trace = replace(self.trace, name="backward", inputs=inputs, outputs=self.grads)
        return replace(trace, bound_symbols=body, numbers=numbers)


def recomputed(
    forward: Body, read: Iterable[TensorProxy], saved: Collection[str]
) -> tuple[Body, dict[str, TensorProxy]]:
    """Return the forward lines that recompute unsaved values of `read`, and the values that lines and reader take."""
    needed = {proxy.name: proxy for proxy in read}
    lines: list[BoundSymbol] = []
    for item in reversed(forward):
        lacks = any(p.name in needed and p.name not in saved for p in item.outputs)
        if lacks and not item.is_random:
            needed.update((proxy.name, proxy) for proxy in item.inputs)
            tags = item.tags if is_view(item) else item.tags | {RECOMPUTED}
            lines.append(replace(item, links=links_again(item), tags=tags))
    names = {proxy.name for item in lines for proxy in item.outputs}
    return tuple(lines[::-1]), {name: value for name, value in needed.items() if name not in names}


def _just_in_time(body: Body) -> Body:
    """Return a backward with lines outside of the sweep as late as possible."""
    stays = [BACKWARD in item.tags or item.is_random for item in body]
    late = len(body)
    place = [late] * len(body)
    first: dict[str, int] = {}
    for index in range(late - 1, -1, -1):
        reader = min((first.get(p.name, late) for p in body[index].outputs), default=late)
        place[index] = index if stays[index] else reader
        for proxy in body[index].inputs:
            first[proxy.name] = min(first.get(proxy.name, late), place[index])
    order = sorted(range(late), key=lambda index: (place[index], stays[index], index))
    return tuple(body[index] for index in order)


def unlinked(item: BoundSymbol) -> BoundSymbol:
    """Return a line of the forward without links; only gradients themselves keep links."""
    links = item.links if INNER_GRADIENT in item.tags else ()
    return changed(item, links=links, subsymbols=tuple(map(unlinked, item.subsymbols)))
