"""The grad pass: a trace becomes the joint trace of its forward and its backward.

The first applicable case linearises a bound symbol. (1) The symbol is constant: no input requires grad, grad mode is
off, or a skip rule says so. (2) A grad rule accepts: rules of the call first, then those of executors and packages in
the call's order. (3) The symbol has a decomposition. (4) A leaf has a derived rule. If an executor claims a call
without a rule, its forward stays; the decomposition is differentiated in addition, and recomputed in the backward. The
backward sweep goes through the linearisations in reverse. It accumulates in autograd's order, and knows no operator.
Every line of the backward has a `Link` to its forward line and rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import NotDifferentiable, StrictError
from switchgear_core.grad.derived import derive, further_reads, instantiate, rebind
from switchgear_core.grad.sweep import Linear, linked, refusing, sweep
from switchgear_core.ir.choice import Choice
from switchgear_core.ir.dead_code import dead_code
from switchgear_core.ir.proxy import TensorProxy, changed_proxy
from switchgear_core.ir.symbol import (
    CUSTOM_FUNCTION,
    GRAD_OFF_INSIDE,
    RECOMPUTED,
    SAVED,
    BoundSymbol,
    Link,
    RuleOrigin,
    changed,
    inherited,
    map_proxies,
    proxies,
    region_of,
    renamed,
    with_parts,
)
from switchgear_core.ir.trace import Names, Trace, names_of
from switchgear_core.ir.writes import WritingOperator
from switchgear_core.record.doors import Doors
from switchgear_core.record.recorder import Recorder
from switchgear_core.record.values import metadata_proxy
from switchgear_core.registry.claim import Claim, claimant
from switchgear_core.registry.registry import GradRule
from switchgear_core.registry.rules import Applied, Grads, OwnGradient, apply_rule
from switchgear_core.registry.selection import Reasons, Selection


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """Forward and backward in one trace, and the choices for its gradients.

    The trace's inputs are the forward's and then the defined grad outputs; its outputs the forward's `count`, then a
    gradient or None per forward input. `residuals` are values that other grad outputs, or those of a second derivative,
    would read: eager mode saves them too. `aliases` maps values of the forward that have another name here.
    """

    trace: Trace
    count: int
    grad_outputs: Grads
    choices: tuple[Choice, ...]
    residuals: tuple[TensorProxy, ...] = ()
    aliases: Mapping[str, TensorProxy] = field(default_factory=dict)


def differentiate(
    trace: Trace, selection: Selection, grad_outputs: Grads, *, higher_order: bool = False
) -> Joint:
    """Return the joint trace for grad outputs that are defined where `grad_outputs` has a proxy, with its metadata.

    Outputs may also be values that a grad rule computes inside its forward. `higher_order`: the backward is
    differentiated in its turn; some of PyTorch's formulas then differ.

    Raises:
        NotDifferentiable: no rule, decomposition or formula differentiates an operator.
        RuleError: a rule raised, or returned something invalid.
        StrictError: under `selection.strict`, a claimed forward has no rule.
    """
    with selection.handlers.entered("around"), internals.exact_functionalization():
        return _differentiate(trace, selection, grad_outputs, higher_order)


def _differentiate(
    trace: Trace, selection: Selection, grad_outputs: Grads, higher_order: bool
) -> Joint:
    names = Names({*names_of(trace), *(proxy.name for proxy in proxies(grad_outputs))})
    forward = Forward(
        names, selection, higher_order, frozenset(proxy.name for proxy in proxies(trace.outputs))
    )
    with internals.autocast_off():
        for bound_symbol in trace.bound_symbols:
            forward.linearise(bound_symbol, bound_symbol)
    outputs: Grads = map_proxies(forward.now, trace.outputs)
    cotangents = tuple(
        grad if out is not None and out.requires_grad else None
        for grad, out in zip(grad_outputs, outputs, strict=True)
    )
    backward, grads = sweep(forward.linears, outputs, cotangents, forward.doors)
    final = tuple(grads.get(proxy.name) if proxy.requires_grad else None for proxy in trace.inputs)
    joint = Trace(
        "joint",
        inputs=(*trace.inputs, *proxies(cotangents)),
        outputs=(*outputs, *final),
        bound_symbols=(*forward.body, *backward),
        tensors={**trace.tensors, **forward.constants},
        provenance=trace.provenance,
        numbers=trace.numbers,
    )
    choices, extra_reads = tuple(forward.choices), tuple(forward.extra_reads)
    return Joint(dead_code(joint), len(outputs), cotangents, choices, extra_reads, forward.aliases)


class Forward:
    """A linearisation of single bound symbols."""

    def __init__(
        self,
        names: Names,
        selection: Selection,
        higher_order: bool,
        ends: frozenset[str] = frozenset(),
    ) -> None:
        self.higher_order = higher_order
        self.ends = ends
        self.names = names
        self.selection = selection
        recorder = Recorder(names, partial(_adopt_constant, names), follow_autograd=False)
        self.constants = recorder.tape.constants
        self.doors = Doors(recorder, selection.handlers)
        self.body: list[BoundSymbol] = []
        self.linears: list[Linear] = []
        self.choices: list[Choice] = []
        self.extra_reads: list[TensorProxy] = []
        self.aliases: dict[str, TensorProxy] = {}
        #: Results of the conjugate and negative fallbacks of PyTorch's dispatcher, each with its argument.
        self._lazy: dict[str, TensorProxy] = {}

    def now(self, proxy: TensorProxy) -> TensorProxy:
        """Return the current name of a value of the given trace."""
        return self.aliases.get(proxy.name, proxy)

    def linearise(self, bound_symbol: BoundSymbol, origin: BoundSymbol) -> None:
        """Append a bound symbol, and its linearisation; `origin` is the bound symbol of the trace that contains it."""
        pending = deque([bound_symbol])
        while pending:
            item = self._current(pending.popleft())
            parts = self._decide(item, origin)
            tags = inherited(item.tags)
            pending.extendleft(
                changed(part, tags=part.tags | tags) if tags else part for part in reversed(parts)
            )

    def _decide(self, item: BoundSymbol, origin: BoundSymbol) -> tuple[BoundSymbol, ...]:
        """Pick the differentiation of a bound symbol, in this place alone; return the parts that replace it, if any."""
        gradient: OwnGradient | None = item.symbol.gradient
        constant = self._constant(item)
        if constant:
            self._choose(item, "constant", constant)
            # under no_grad, eager treats a view as a leaf that requires grad, and users of the view likewise
            item = self._cut(item) if item.grad_enabled else item
            parts = gradient.constant(item) if gradient is not None else (item,)
            self.body.extend(
                linked(part, Link(origin, RuleOrigin("constant", constant))) for part in parts
            )
            return ()
        if gradient is not None:
            rule_origin = gradient.origin(item)
            self._choose(item, rule_origin.owner, f"{rule_origin.form} rule")
            if not region_of(item):
                self.extra_reads.extend(gradient.saved(item))
            applied = gradient.linearise(item, self.doors, self.higher_order)
            self._append(applied, rule_origin, item, origin)
            return ()
        symbol = item.symbol
        rule, declined = (
            self.selection.grad_rule(item)
            if symbol.pullback is None
            else (GradRule("switchgear", symbol.name, "pullback", symbol.pullback), ())
        )
        if rule is not None:
            self._choose(item, rule.owner, f"{rule.form} rule", declined)
            self._apply(rule, item, origin)
        elif item.is_leaf or GRAD_OFF_INSIDE in item.tags:
            if self.selection.strict:
                self._keeper(item)
            self._choose(item, "derived", "PyTorch's autograd formula", declined)
            self._derive(item, origin)
        else:
            return self._decompose(item, origin, declined)
        return ()

    def _constant(self, item: BoundSymbol) -> str:
        """Return why a bound symbol is constant for differentiation; empty otherwise."""
        if not _requires_grad(item.inputs):
            return "no input requires grad"
        if not item.grad_enabled:
            return "grad mode is off"
        if not _requires_grad(item.outputs):
            return "no output is differentiable"
        skipped, reason = self.selection.constant(item)
        return reason if skipped else ""

    def _apply(self, rule: GradRule, item: BoundSymbol, origin: BoundSymbol) -> None:
        self._append(
            apply_rule(rule, item, self.doors, self.higher_order),
            RuleOrigin(rule.owner, rule.form),
            item,
            origin,
        )

    def _append(
        self, applied: Applied, rule_origin: RuleOrigin, item: BoundSymbol, origin: BoundSymbol
    ) -> None:
        link = Link(origin, rule_origin)
        inside = {proxy.name for line in applied.forward for proxy in line.outputs}
        if self.ends & inside - {proxy.name for proxy in applied.outputs}:
            # values of rules are saved by name, independent of the requested outputs
            with self.names.apart():
                for line in applied.forward:
                    try:
                        self.linearise(line, origin)
                    except NotDifferentiable as error:
                        if not line.is_leaf:
                            raise
                        self.body.append(linked(line, link))
                        self.linears.append(refusing(line, link, error))
        else:
            tags = item.tags & {SAVED} | inherited(item.tags)
            self.body.extend(linked(line, link, *tags) for line in applied.forward)
        for proxy, output in zip(item.outputs, applied.outputs, strict=True):
            if output != proxy:
                self.aliases[proxy.name] = output
        self.linears.append(Linear(item.inputs, applied.outputs, applied.pull, link))

    def _derive(self, item: BoundSymbol, origin: BoundSymbol) -> None:
        # fail here, at the operator, and not in the sweep; but the results of one that writes have no formula
        is_writing = isinstance(item.symbol.fn, WritingOperator)
        formless = {proxy.name for proxy in proxies(item.output[0])} if is_writing else set()
        expected = tuple(
            [
                changed_proxy(p, requires_grad=False)
                if p.requires_grad and p.name not in formless
                else None
                for p in item.outputs
            ]
        )
        # the formula reads the arguments as autograd sees them, before the fallbacks
        call = item.reading(self._lazy)
        template = derive(call, expected, self.higher_order)
        metadata, region = [p and p.metadata for p in expected], internals.autocast_key()
        if not region_of(item):
            self.extra_reads.extend(further_reads(template, call, expected))
        # locals: `self` would keep the pulled lines alive
        higher_order, names = self.higher_order, self.names

        def pull(grads: Grads) -> tuple[tuple[BoundSymbol, ...], Grads]:
            # linearised outside of autocast, and pulled inside if the backward runs under autocast
            alike = [
                p and p.metadata for p in grads
            ] == metadata and internals.autocast_key() == region
            formula = template if alike else derive(call, grads, higher_order)
            return instantiate(formula, call, grads, names)

        link = Link(origin, RuleOrigin("derived", item.symbol.name.removesuffix(".default")))
        self.body.append(linked(item, link))
        self.linears.append(Linear(item.inputs, item.outputs, pull, link))

    def _decompose(
        self, item: BoundSymbol, origin: BoundSymbol, declined: Reasons
    ) -> tuple[BoundSymbol, ...]:
        """Decompose, or keep an executor's whole forward and also differentiate its decomposition."""
        owner, claim = self._keeper(item)
        if owner is None:
            waiting = claim.declined[-1:] if claim.waits else ()
            self._choose(item, "decomposition", "", (*declined, *waiting))
            self._lazy.update(_resolved(item))
            wholes = (*item.wholes, item) if claim.waits else item.wholes
            return tuple([changed(part, wholes=wholes) for part in item.subsymbols])
        if item.is_random:
            reason = f"{owner}'s forward is not used: its decomposition draws random numbers and cannot be run again"
            self._choose(item, "decomposition", reason, (*declined, (owner, reason)))
            return item.subsymbols
        reason = f"{owner} keeps the forward, the backward recomputes the values it needs"
        self._choose(item, "decomposition", reason, declined)
        link = Link(origin, RuleOrigin("decomposition", item.symbol.name))
        self.body.append(linked(item, link))
        env: dict[str, TensorProxy] = {}
        for copy in [rebind(part, env, self.names) for part in item.subsymbols]:
            self.linearise(replace(copy, tags=copy.tags | {RECOMPUTED}), origin)
        # the sweep is reversed: gradients of kept outputs go to their recomputed twins first
        copied = tuple(self.now(env[proxy.name]) for proxy in item.outputs)
        self.linears.append(Linear(copied, item.outputs, lambda grads: ((), grads), link))
        return ()

    def _keeper(self, item: BoundSymbol) -> tuple[str | None, Claim]:
        """Return the executor, if any, that runs a bound symbol whole without a grad rule.

        Raises:
            StrictError: under `strict`, there is such an executor.
        """
        claim = claimant(item, self.selection)
        implementation = claim.implementation
        if implementation is None or implementation.fn is item.symbol.fn:
            return None, claim
        if self.selection.strict and CUSTOM_FUNCTION not in item.tags:
            raise StrictError(
                f"{implementation.owner} claims {item.symbol.name}, called at {item.source}, and nobody brings a grad "
                "rule for it; register one, or drop strict=True to have its backward derived"
            )
        return implementation.owner, claim

    def _current(self, item: BoundSymbol) -> BoundSymbol:
        """Return a bound symbol with current values, and with `requires_grad` of its outputs matching its inputs."""
        if not self.aliases:
            return item
        current = renamed(item, self.aliases)
        cut = _requires_grad(current.outputs) and not _requires_grad(current.inputs)
        return self._cut(current) if cut else current

    def _cut(self, item: BoundSymbol) -> BoundSymbol:
        """Return the bound symbol with no result requiring grad."""
        results = [
            proxy for part in with_parts([item]) for proxy in part.outputs if proxy.requires_grad
        ]
        self.aliases.update((proxy.name, replace(proxy, requires_grad=False)) for proxy in results)
        return renamed(item, self.aliases)

    def _choose(self, item: BoundSymbol, owner: str, reason: str, declined: Reasons = ()) -> None:
        self.choices.append(Choice("gradient", item.symbol.name, owner, reason, declined))


def _adopt_constant(names: Names, recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor:
    """Enter a tensor from a rule's closure."""
    constants = recorder.tape.constants
    name = names.claim(f"c{len(constants)}")
    with internals.real_dispatch():
        constants[name] = tensor.detach()
    return recorder.enter(tensor, metadata_proxy(name, tensor, False))


def _resolved(item: BoundSymbol) -> dict[str, TensorProxy]:
    """Map copies of lazily conjugated or negated values, as inserted between parts, to the original values."""
    names = {proxy.name for proxy in item.outputs}
    originals = {}
    for part in item.subsymbols:
        if part.symbol.fn is torch.ops.aten.clone.default and part.outputs[0].name not in names:
            (original,), (copy,) = part.inputs, part.outputs
            lazy = (original.is_conj, original.is_neg) != (copy.is_conj, copy.is_neg)
            if lazy and not part.kwargs:
                originals[copy.name] = original
    return originals


def _requires_grad(values: tuple[TensorProxy, ...]) -> bool:
    return any(proxy.requires_grad for proxy in values)
