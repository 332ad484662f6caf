"""The grad pass: a trace becomes the joint trace of its forward and its backward.

Each bound symbol is linearised by the first of: constant, grad rule, decomposition, derived rule. The backward sweep
then goes through the linearisations in reverse, and knows no operator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from switchgear import torch_internals as internals
from switchgear.choice import Choice
from switchgear.errors import StrictError
from switchgear.proxy import TensorProxy
from switchgear.recorder import Recorder
from switchgear.rules import Grads, apply_rule
from switchgear.selection import Selection
from switchgear.symbol import BACKWARD, GRAD_OFF_INSIDE, RECOMPUTED, BoundSymbol, Link, RuleOrigin, Symbol, map_proxies
from switchgear.trace import Names, Trace, names_of
from switchgear.tracking import metadata_proxy
from switchgear.writes import RULES

from .claim import claimant
from .dead_code import dead_code
from .derived import derive, instantiate, rebind

_ADD = Symbol("aten.add.Tensor", torch.ops.aten.add.Tensor)


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Forward and backward in one trace, and the choices made on the way.

    The trace's inputs are the forward's and then the defined grad outputs; its outputs the forward's `count`, and
    then a gradient or None per forward input.
    """

    trace: Trace
    count: int
    grad_outputs: Grads
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Linear:
    """One differentiated bound symbol: `pull` gives its part of the backward and a gradient per tensor argument."""

    arguments: tuple[TensorProxy, ...]
    outputs: tuple[TensorProxy, ...]
    pull: Callable[[Grads], tuple[tuple[BoundSymbol, ...], Grads]]
    link: Link


def differentiate(trace: Trace, selection: Selection, grad_outputs: Grads, *, higher_order: bool = False) -> Joint:
    """The joint trace for grad outputs that are defined where `grad_outputs` has a proxy, with its metadata.

    `higher_order`: the backward is differentiated in its turn; some of PyTorch's formulas are others then.

    Raises `NotDifferentiable`, `RuleError`, and under `selection.strict` `StrictError`.
    """
    names = Names({*names_of(trace), *(proxy.name for proxy in grad_outputs if proxy is not None)})
    forward = _Forward(names, selection, higher_order)
    for bound_symbol in trace.bound_symbols:
        forward.linearise(bound_symbol, bound_symbol)
    outputs = tuple(None if proxy is None else forward.now(proxy) for proxy in trace.outputs)
    cotangents = tuple(
        cotangent if out is not None and out.requires_grad else None
        for cotangent, out in zip(grad_outputs, outputs, strict=True)
    )
    backward, grads = _sweep(forward.linears, outputs, cotangents, trace.inputs, forward.recorder)
    joint = Trace(
        "joint",
        (*trace.inputs, *(proxy for proxy in cotangents if proxy is not None)),
        (*outputs, *grads),
        (*forward.body, *backward),
        {**trace.constants, **forward.recorder.constants},
        trace.provenance,
    )
    return Joint(dead_code(joint), len(outputs), cotangents, tuple(forward.choices))


class _Forward:
    """Linearises bound symbols one by one."""

    def __init__(self, names: Names, selection: Selection, higher_order: bool) -> None:
        self.higher_order = higher_order
        self.names = names
        self.selection = selection
        self.recorder = Recorder(names, self._adopt_constant, follow_autograd=False)
        self.body: list[BoundSymbol] = []
        self.linears: list[_Linear] = []
        self.choices: list[Choice] = []
        self._env: dict[str, TensorProxy] = {}

    def now(self, proxy: TensorProxy) -> TensorProxy:
        """What a value of the given trace is called by now."""
        return self._env.get(proxy.name, proxy)

    def linearise(self, bound_symbol: BoundSymbol, origin: BoundSymbol) -> None:
        """Append a bound symbol, and how it is differentiated; `origin` is the one of the trace that it belongs to."""
        pending = deque([bound_symbol])
        while pending:
            item = self._current(pending.popleft())
            parts = self._decide(item, origin)
            pending.extendleft(replace(part, tags=part.tags | item.tags & _INHERITED) for part in reversed(parts))

    def _decide(self, item: BoundSymbol, origin: BoundSymbol) -> tuple[BoundSymbol, ...]:
        """The one place that picks how a bound symbol is differentiated; returns the parts that replace it, if any."""
        constant = self._constant(item)
        if constant:
            self._emit_constant(item, constant, origin)
            return ()
        own = RULES.get(item.symbol)
        rule, declined = (own, ()) if own is not None else self.selection.grad_rule(item)
        if rule is not None:
            self._choose(item, rule.owner, f"{rule.form} rule", declined)
            applied = apply_rule(rule, item, self.recorder)
            link = Link(origin, RuleOrigin(rule.owner, rule.form))
            self.body.extend(_linked(made, link) for made in applied.forward)
            for proxy, output in zip(item.outputs, applied.outputs, strict=True):
                if output != proxy:
                    self._env[proxy.name] = output
            self.linears.append(_Linear(item.inputs, applied.outputs, applied.pull, link))
            return ()
        if item.is_leaf or GRAD_OFF_INSIDE in item.tags:
            self._refuse_if_strict(item)
            self._choose(item, "derived", "PyTorch's autograd formula", declined)
            self._emit_derived(item, origin)
            return ()
        return self._decomposed(item, origin, declined)

    def _constant(self, item: BoundSymbol) -> str:
        """Why a bound symbol takes no part in differentiation, or an empty string."""
        if not any(proxy.requires_grad for proxy in item.inputs):
            return "no input requires grad"
        if not item.grad_enabled:
            return "grad mode is off"
        if not any(proxy.requires_grad for proxy in item.outputs):
            return "no output is differentiable"
        skipped, reason = self.selection.constant(item)
        return reason if skipped else ""

    def _emit_constant(self, item: BoundSymbol, reason: str, origin: BoundSymbol) -> None:
        self._choose(item, "constant", reason, ())
        # under no_grad eager calls a view a leaf that requires grad, and so do its users
        constant = self._cut(item) if item.grad_enabled else item
        self.body.append(_linked(constant, Link(origin, RuleOrigin("constant", reason))))

    def _decomposed(
        self, item: BoundSymbol, origin: BoundSymbol, declined: tuple[tuple[str, str], ...]
    ) -> tuple[BoundSymbol, ...]:
        """Decompose, or keep an executor's forward whole and differentiate its decomposition beside it."""
        implementation, _ = claimant(item, self.selection)
        if implementation is None or implementation.fn is item.symbol.fn:
            self._choose(item, "decomposition", "", declined)
            return item.subsymbols
        owner = implementation.owner
        self._refuse_if_strict(item)
        if item.is_random:
            reason = f"{owner}'s forward is not used: its decomposition draws random numbers and cannot be run again"
            self._choose(item, "decomposition", reason, (*declined, (owner, reason)))
            return item.subsymbols
        self._choose(
            item, "decomposition", f"{owner} keeps the forward, the backward recomputes what it needs", declined
        )
        link = Link(origin, RuleOrigin("decomposition", item.symbol.name))
        self.body.append(_linked(item, link))
        env: dict[str, TensorProxy] = {}
        copies = tuple(rebind(part, env, self.names) for part in item.subsymbols)
        for copy in copies:
            self.linearise(replace(copy, tags=copy.tags | {RECOMPUTED}), origin)
        # the sweep goes backwards: the gradients of the kept outputs go to their recomputed twins first
        copied = tuple(self.now(env[proxy.name]) for proxy in item.outputs)
        self.linears.append(_Linear(copied, item.outputs, lambda grads: ((), grads), link))
        return ()

    def _emit_derived(self, item: BoundSymbol, origin: BoundSymbol) -> None:
        # fail here, where the operator is, and not in the sweep
        derive(item, tuple(_expected_grad(proxy) for proxy in item.outputs), self.higher_order)

        def pull(grads: Grads) -> tuple[tuple[BoundSymbol, ...], Grads]:
            body, found = instantiate(derive(item, grads, self.higher_order), item, grads, self.names)
            return tuple(body), found

        link = Link(origin, RuleOrigin("derived", item.symbol.name.removesuffix(".default")))
        self.body.append(_linked(item, link))
        self.linears.append(_Linear(item.inputs, item.outputs, pull, link))

    def _refuse_if_strict(self, item: BoundSymbol) -> None:
        if not self.selection.strict:
            return
        implementation, _ = claimant(item, self.selection)
        if implementation is not None and implementation.fn is not item.symbol.fn:
            raise StrictError(
                f"{implementation.owner} claims {item.symbol.name}, called at {item.source}, and nobody brings a grad "
                "rule for it; register one, or drop strict=True to have its backward derived"
            )

    def _current(self, item: BoundSymbol) -> BoundSymbol:
        """A bound symbol with its values as they are by now, and requires_grad of its outputs to match its inputs."""
        if not self._env:
            return item
        current = self._rewritten(item)
        if any(proxy.requires_grad for proxy in current.outputs) and not any(p.requires_grad for p in current.inputs):
            return self._cut(current)
        return current

    def _cut(self, item: BoundSymbol) -> BoundSymbol:
        """The bound symbol with nothing that it makes requiring grad."""
        for made in (item, *_all_parts(item)):
            for proxy in made.outputs:
                if proxy.requires_grad:
                    self._env[proxy.name] = replace(proxy, requires_grad=False)
        return self._rewritten(item)

    def _rewritten(self, item: BoundSymbol) -> BoundSymbol:
        args, kwargs, output = map_proxies(self.now, (item.args, dict(item.kwargs), item.output))
        parts = tuple([self._rewritten(part) for part in item.subsymbols])
        return replace(item, args=args, kwargs=kwargs, output=output, subsymbols=parts)

    def _adopt_constant(self, tensor: torch.Tensor) -> TensorProxy:
        """A tensor that a rule closes over."""
        name = self.names.claim(f"c{len(self.recorder.constants)}")
        with internals.real_dispatch():
            self.recorder.constants[name] = tensor.detach()
        return metadata_proxy(name, tensor, False)

    def _choose(self, item: BoundSymbol, owner: str, reason: str, declined: tuple[tuple[str, str], ...]) -> None:
        self.choices.append(Choice("gradient", item.symbol.name, owner, reason, declined))


def _all_parts(item: BoundSymbol) -> Iterator[BoundSymbol]:
    for part in item.subsymbols:
        yield part
        yield from _all_parts(part)


_INHERITED = frozenset({"checkpoint", RECOMPUTED})


def _expected_grad(proxy: TensorProxy) -> TensorProxy | None:
    return replace(proxy, requires_grad=False) if proxy.requires_grad else None


def _sweep(
    linears: list[_Linear],
    outputs: tuple[TensorProxy | None, ...],
    cotangents: Grads,
    inputs: tuple[TensorProxy, ...],
    recorder: Recorder,
) -> tuple[list[BoundSymbol], Grads]:
    """The backward, and the gradient or None of each input."""
    backward: list[BoundSymbol] = []
    grads: dict[str, TensorProxy] = {}
    makers: dict[str, tuple[Link, ...]] = {}

    def accumulate(proxy: TensorProxy, grad: TensorProxy, links: tuple[Link, ...]) -> None:
        known = grads.get(proxy.name)
        if known is not None:
            made = (*makers[known.name], *links) if known.name in makers else links
            total = _sum(known, grad, recorder, made)
            backward.extend(total)
            grad, links = total[-1].outputs[0], made
        grads[proxy.name] = grad
        makers[grad.name] = links

    for proxy, cotangent in zip(outputs, cotangents, strict=True):
        if proxy is not None and cotangent is not None:
            accumulate(proxy, cotangent, ())
    for linear in reversed(linears):
        incoming = tuple(grads.pop(proxy.name, None) for proxy in linear.outputs)
        if all(grad is None for grad in incoming):
            continue
        body, found = linear.pull(incoming)
        backward.extend(_linked(item, linear.link, BACKWARD) for item in body)
        for proxy, grad in zip(linear.arguments, found, strict=True):
            if grad is not None and proxy.requires_grad:
                accumulate(proxy, grad, (linear.link,))
    return backward, tuple(grads.get(proxy.name) if proxy.requires_grad else None for proxy in inputs)


def _linked(item: BoundSymbol, link: Link, *tags: str) -> BoundSymbol:
    parts = tuple([_linked(part, link, *tags) for part in item.subsymbols])
    source = item.source or link.forward.source
    return replace(item, links=(link,), source=source, subsymbols=parts, tags=item.tags.union(tags))


def _sum(left: TensorProxy, right: TensorProxy, recorder: Recorder, links: tuple[Link, ...]) -> list[BoundSymbol]:
    """`left + right`, as the autograd engine accumulates."""
    tags = frozenset({BACKWARD})
    if (left.shape, left.stride, left.dtype, left.device) == (right.shape, right.stride, right.dtype, right.device):
        output = replace(left, name=recorder.names.fresh(), requires_grad=False, storage_offset=0)
        if not _overlaps(left):
            source = links[-1].forward.source if links else None
            return [
                BoundSymbol(_ADD, (left, right), {}, output, source=source, grad_enabled=False, links=links, tags=tags)
            ]
    with recorder.recording(), torch._C.DisableTorchFunction(), torch.no_grad():
        recorder.tracker.proxy_of(recorder.tracker.wrapper_for(left) + recorder.tracker.wrapper_for(right))
    return [replace(item, links=links, tags=tags) for item in recorder.take()]


def _overlaps(proxy: TensorProxy) -> bool:
    """Whether the layout has holes or repeats, so that a sum's layout differs from its terms'."""
    step = 1
    for size, stride in sorted(zip(proxy.shape, proxy.stride, strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != step:
            return True
        step *= max(size, 1)
    return False
