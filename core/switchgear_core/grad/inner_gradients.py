"""Inner gradients: `torch.autograd.grad` in a trace becomes the lines computing the gradients.

They follow the same order of rules as any backward. For enclosing gradients the lines are forward: nothing flows back
through them, as in eager mode without `create_graph`. Where an enclosing gradient may differentiate the same call
again, the call stays, and the forward of a rule is added. A call that draws random numbers is decomposed instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from switchgear_core import torch_private as internals
from switchgear_core.errors import SwitchgearError, Unsupported
from switchgear_core.grad.differentiate import Forward
from switchgear_core.grad.partition import unlinked
from switchgear_core.grad.sweep import Linear, linked, sweep
from switchgear_core.ir.choice import Choice
from switchgear_core.ir.dead_code import dead_code
from switchgear_core.ir.proxy import TensorProxy, is_dense
from switchgear_core.ir.symbol import (
    BACKWARD,
    INNER_GRADIENT,
    BoundSymbol,
    Link,
    RuleOrigin,
    Symbol,
    map_proxies,
    proxies,
    renamed,
    with_parts,
)
from switchgear_core.ir.trace import Names, Trace, names_of
from switchgear_core.ir.writes import IDENTITY, NEW_LEAF, SET_VALUE
from switchgear_core.record.gradients_inside import AUTOGRAD_GRAD
from switchgear_core.registry.registry import GradRule
from switchgear_core.registry.rules import apply_rule
from switchgear_core.registry.selection import Selection

_aten = torch.ops.aten
_COPY, _DETACH, _EMPTY, _ONES, _TO, _ZEROS = (
    Symbol(str(overload), overload)
    for overload in (
        _aten.copy.default,
        _aten.detach.default,
        _aten.empty_strided.default,
        _aten.ones_like.default,
        _aten._to_copy.default,
        _aten.zeros_like.default,
    )
)


def inner_gradients(trace: Trace, selection: Selection) -> tuple[Trace, tuple[Choice, ...]]:
    """Return the trace with every call of `torch.autograd.grad` replaced, and the choices for gradients."""
    if not any(item.symbol in (AUTOGRAD_GRAD, NEW_LEAF) for item in trace.bound_symbols):
        return trace, ()
    trace = dead_code(trace)
    region = _Region(trace, selection)
    with internals.exact_functionalization():
        for index, item in enumerate(trace.bound_symbols):
            region.add(index, item)
    body = [item if INNER_GRADIENT in item.tags else unlinked(item) for item in region.body]
    tensors = {**trace.tensors, **region.constants}
    result = replace(
        trace,
        outputs=map_proxies(region.now, trace.outputs),
        bound_symbols=tuple(body),
        tensors=tensors,
    )
    return _without_new_leaves(result), tuple(region.choices)


class _Region(Forward):
    """A linearisation of the lines between inputs and outputs of the calls, which replaces each call by a sweep."""

    def __init__(self, trace: Trace, selection: Selection) -> None:
        super().__init__(Names(names_of(trace)), selection, higher_order=False)
        self._trace = trace
        self._producers = {p.name: item for item in trace.bound_symbols for p in item.outputs}
        calls = enumerate(trace.bound_symbols)
        self._paths = {
            index: self._path(index, call) for index, call in calls if call.symbol == AUTOGRAD_GRAD
        }
        self._differentiated = frozenset[int]().union(*self._paths.values())
        self._outer = self._outer_positions()
        self._owners: list[int] = []
        self._current_index = 0

    def add(self, index: int, item: BoundSymbol) -> None:
        """Append a bound symbol of the trace."""
        self._current_index = index
        if index in self._paths:
            self._replace(self._paths[index], renamed(item, self.aliases))
        elif index in self._differentiated:
            self.linearise(item, item)
            self._owners.extend([index] * (len(self.linears) - len(self._owners)))
        else:
            self.body.append(renamed(item, self.aliases))

    def _root(self, proxy: TensorProxy) -> TensorProxy:
        """Return the value that autograd identifies with a tensor: unseen writes leave its history unchanged."""
        while (item := self._producers.get(proxy.name)) is not None and item.symbol == SET_VALUE:
            proxy = item.args[0]
        return proxy

    def _path(self, index: int, call: BoundSymbol) -> frozenset[int]:
        """Return the positions of the lines between the inputs and the outputs of a call."""
        reached = {self._root(proxy).name for proxy in call.args[1]}
        behind: list[int] = []
        items = self._trace.bound_symbols[:index]
        for position, item in enumerate(items):
            if not reached.isdisjoint(p.name for p in item.inputs) and any(
                p.requires_grad for p in item.outputs
            ):
                behind.append(position)
                reached.update(p.name for p in item.outputs if p.requires_grad)
        needed = {proxy.name for proxy in call.args[0]}
        path = []
        for position in reversed(behind):
            if not needed.isdisjoint(p.name for p in items[position].outputs):
                path.append(position)
                needed.update(p.name for p in items[position].inputs)
        return frozenset(path)

    def _outer_positions(self) -> frozenset[int]:
        """Return the positions of the lines that an enclosing gradient may have to differentiate."""
        needed = {proxy.name for proxy in proxies(self._trace.outputs) if proxy.requires_grad}
        positions = []
        for position, item in reversed([*enumerate(self._trace.bound_symbols)]):
            if needed.isdisjoint(p.name for p in item.outputs) or item.symbol == AUTOGRAD_GRAD:
                continue
            positions.append(position)
            needed.update(
                p.name for p in (item.inputs[:1] if item.symbol == SET_VALUE else item.inputs)
            )
        return frozenset(positions)

    def _decide(self, item: BoundSymbol, origin: BoundSymbol) -> tuple[BoundSymbol, ...]:
        twice = self._current_index in self._outer and item.is_random and not self._constant(item)
        if not twice:
            return super()._decide(item, origin)
        # the forward of a rule would draw again, next to the kept call
        if item.is_leaf:
            self._choose(item, "derived", "PyTorch's autograd formula")
            self._derive(item, origin)
        else:
            self._choose(
                item,
                "decomposition",
                "it draws random numbers, and an enclosing gradient needs it as it is",
            )
        return item.subsymbols

    def _apply(self, rule: GradRule, item: BoundSymbol, origin: BoundSymbol) -> None:
        if self._current_index not in self._outer:
            super()._apply(rule, item, origin)
            return
        # the enclosing gradient differentiates the call itself; the rule's forward is added for its residuals
        self.body.append(item)
        output = map_proxies(lambda proxy: replace(proxy, name=self.names.fresh()), item.output)
        twin = replace(item, output=output, subsymbols=())
        applied = apply_rule(rule, twin, self.doors, higher_order=False)
        self.body.extend(applied.forward)
        link = Link(origin, RuleOrigin(rule.owner, rule.form))
        self.linears.append(Linear(item.inputs, item.outputs, applied.pull, link))

    def _replace(self, path: frozenset[int], call: BoundSymbol) -> None:
        outputs, inputs, grad_outputs = call.args
        link = Link(call, RuleOrigin("torch", "autograd.grad"))
        linears = [
            linear
            for linear, owner in zip(self.linears, self._owners, strict=True)
            if owner in path
        ]
        cotangents = tuple(
            [self._cotangent(*pair, link) for pair in zip(outputs, grad_outputs, strict=True)]
        )
        roots = [self.now(self._root(proxy)) for proxy in inputs]
        lines, grads = sweep(
            linears, outputs, cotangents, self.doors, frozenset(p.name for p in roots)
        )
        defined = {proxy.name: proxy for item in with_parts(self.body) for proxy in item.outputs}
        pairs = [
            (result, source, grads.get(source.name))
            for result, source in zip(call.output, roots, strict=True)
            if result is not None
        ]
        produced = {proxy.name for item in lines for proxy in item.outputs}
        final: dict[str, TensorProxy] = {}
        for result, _, grad in pairs:
            if grad is not None and grad.name in produced and _same_layout(result, grad):
                final.setdefault(grad.name, result)
        env: dict[str, TensorProxy] = {}

        def define(proxy: TensorProxy) -> TensorProxy:
            if proxy.name not in env:
                name = self.names.fresh() if proxy.name in defined else proxy.name
                env[proxy.name] = final.get(proxy.name) or replace(
                    proxy, name=name, requires_grad=False
                )
            return env[proxy.name]

        self.body.extend(_inner(renamed(item, env, define)) for item in lines)
        for result, source, grad in pairs:
            if grad is None:
                self._zeros(result, source, path, outputs, link)
            elif final.get(grad.name) is not result:
                self._hand_out(result, env.get(grad.name, grad), link)

    def _cotangent(self, output: TensorProxy, grad: TensorProxy | None, link: Link) -> TensorProxy:
        if grad is not None and grad.dtype == output.dtype:
            return grad
        result = replace(output, name=self.names.fresh(), requires_grad=False, storage_offset=0)
        if grad is None:
            self._line(_ONES, (output,), {}, result, link)
        else:
            result = replace(
                grad, name=result.name, dtype=output.dtype, requires_grad=False, storage_offset=0
            )
            self._line(_TO, (grad,), {"dtype": output.dtype}, result, link)
        return result

    def _zeros(
        self,
        result: TensorProxy,
        source: TensorProxy,
        path: frozenset[int],
        outputs: Iterable[TensorProxy],
        link: Link,
    ) -> None:
        """Append zeros for a gradient omitted by a rule, although PyTorch has the gradient."""
        if not path and all(source.name != proxy.name for proxy in outputs):
            raise SwitchgearError(
                f"the gradient of {source.name} was lost, at {link.forward.source}; please report this"
            )
        self._line(_ZEROS, (source,), {}, result, link)

    def _hand_out(self, result: TensorProxy, grad: TensorProxy, link: Link) -> None:
        """Append a copy of a gradient without a line of its own, or with another layout than PyTorch's."""
        if not _same_layout(result, grad) and is_dense(result):
            empty = replace(result, name=self.names.fresh())
            self._line(
                _EMPTY,
                (result.shape, result.stride),
                {"dtype": result.dtype, "device": result.device},
                empty,
                link,
            )
            self._line(_COPY, (empty, grad), {}, result, link)
            return
        if not _same_layout(result, grad):
            self.aliases[result.name] = result = replace(
                grad, name=result.name, requires_grad=False
            )
        self._line(_DETACH, (grad,), {}, result, link)

    def _line(
        self,
        symbol: Symbol,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        result: TensorProxy,
        link: Link,
    ) -> None:
        self.body.append(_inner(linked(BoundSymbol(symbol, args, kwargs, result), link)))


def _inner(item: BoundSymbol) -> BoundSymbol:
    tags = item.tags - {BACKWARD} | {INNER_GRADIENT}
    return replace(
        item,
        tags=tags,
        grad_enabled=False,
        subsymbols=tuple([_inner(part) for part in item.subsymbols]),
    )


def _same_layout(first: TensorProxy, second: TensorProxy) -> bool:
    return (first.stride, first.dtype, first.is_conj, first.is_neg) == (
        second.stride,
        second.dtype,
        second.is_conj,
        second.is_neg,
    )


def _without_new_leaves(trace: Trace) -> Trace:
    """Return the trace as seen from outside, where inner leaves are unreachable: none makes a value require grad."""
    env: dict[str, TensorProxy] = {}
    body: list[BoundSymbol] = []
    for item in trace.bound_symbols:
        if item.symbol == NEW_LEAF:
            item = replace(
                item, symbol=IDENTITY, args=(replace(item.args[0], requires_grad=False),)
            )
        item = renamed(item, env)
        if not any(p.requires_grad for p in item.inputs):
            results = [p for part in with_parts([item]) for p in part.outputs if p.requires_grad]
            env.update((proxy.name, replace(proxy, requires_grad=False)) for proxy in results)
            item = renamed(item, env)
        body.append(item)
    for proxy in proxies(trace.outputs):
        if proxy.name in env:
            raise Unsupported(
                f"the function returns {proxy.name}, which requires grad for a tensor that was told so inside "
                "(requires_grad_()) alone; return it detached, or pass that tensor in from outside"
            )
    return replace(trace, bound_symbols=tuple(body))
