"""Passes of plugins: answers to their questions about the call of `jit`.

A pass that replaces several calls by a single call (a *pattern*) asks whether its executor claims the new call. The
replaced calls are its subsymbols. The answer is no if an earlier executor claims a subsymbol. It is also no if an
earlier owner's grad rule or a skip rule applies to a subsymbol. So a pattern never changes the order of executors, and
the answer, or the pass's own reason, is a `Choice` of the kind `pattern`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from switchgear_core import own
from switchgear_core.errors import InvalidTrace, RuleError, SwitchgearError
from switchgear_core.ir.choice import Choice
from switchgear_core.ir.lines import Lines
from switchgear_core.ir.proxy import TensorProxy, hint_of
from switchgear_core.ir.symbol import BoundSymbol, with_parts
from switchgear_core.ir.trace import Trace
from switchgear_core.ir.verify import verify
from switchgear_core.registry.claim import claimant
from switchgear_core.registry.executor import Executor
from switchgear_core.registry.hookspecs import OF_THE_CALL, PassContext, PassPlacement, Stage
from switchgear_core.registry.selection import Claimant, Selection


class CallContext:
    """The `PassContext` of a call."""

    def __init__(
        self,
        selection: Selection,
        *,
        gives_gradients: bool = False,
        destined: Mapping[int, int] = MappingProxyType({}),
        count: int | None = None,
        is_differentiated: bool = False,
        replaced: dict[str, TensorProxy] | None = None,
    ) -> None:
        self._selection = selection
        self.count = count
        self.is_differentiated = is_differentiated
        self._replaced: dict[str, TensorProxy] = {} if replaced is None else replaced
        self.gives_gradients = gives_gradients
        self.destined = destined
        self.executors: tuple[Executor, ...] = selection.executors
        self.choices: list[Choice] = []

    def replace(self, replacements: Mapping[str, TensorProxy]) -> None:
        """See `PassContext`."""
        for name, proxy in self._replaced.items():
            self._replaced[name] = replacements.get(proxy.name, proxy)
        self._replaced.update(replacements)

    @staticmethod
    def hint(number: object) -> object:
        """See `PassContext`."""
        return hint_of(number)

    def takes(self, owner: str, candidate: BoundSymbol) -> bool:
        """See `PassContext`."""
        implementation, declined, _ = claimant(candidate, self._selection)
        if implementation is None:
            reason = ""
        elif implementation.owner != owner:
            reason = f"{implementation.owner} comes before it"
        else:
            reason = next(self._objections(owner, candidate), "")
            if not reason:
                self.choices.append(Choice("pattern", candidate.symbol.name, owner, "", declined))
                return True
        self.decline(owner, candidate, reason, declined)
        return False

    def offer(self, owner: str, lines: Lines, composite: BoundSymbol, unless: str = "") -> None:
        """See `PassContext`."""
        reason = unless or lines.seen_elsewhere(composite)
        if reason:
            self.decline(owner, composite.subsymbols[-1], reason)
        elif self.takes(owner, composite):
            lines.replace(composite.subsymbols, composite)

    def decline(
        self,
        owner: str,
        bound_symbol: BoundSymbol,
        reason: str,
        others: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """See `PassContext`."""
        declined = (*others, (owner, reason)) if reason else others
        self.choices.append(
            Choice("pattern", bound_symbol.symbol.name, "decomposition", "", declined)
        )

    def _objections(self, owner: str, candidate: BoundSymbol) -> Iterator[str]:
        """Yield reasons against differentiating the parts of a candidate by a rule for the whole."""
        if not any(proxy.requires_grad for proxy in candidate.inputs):
            return
        sources = self._selection.rule_sources
        matches = (isinstance(source, Claimant) and source.name == owner for source in sources)
        position = [*matches].index(True)
        before = replace(self._selection, rule_sources=sources[:position])
        for part in with_parts(candidate.subsymbols):
            rule, _ = before.grad_rule(part)
            if rule is not None:
                yield f"{rule.owner}, which comes before it, has a grad rule for {part.symbol.name} inside"
            skipped, reason = self._selection.constant(part)
            if skipped:
                yield f"{part.symbol.name} inside is a constant by a {reason}"


def run_passes(
    stage: Stage, trace: Trace, selection: Selection, **facts: Any
) -> tuple[list[Trace], list[Choice]]:
    """Return the traces made by the passes at a stage, in turn, and their choices.

    The last trace is verified if a pass does not ship with Switchgear; the earlier traces only if the last is broken,
    to find the faulty pass.
    """
    results: list[tuple[PassPlacement, Trace]] = []
    choices: list[Choice] = []
    try:
        for placement in selection.passes_at(stage):
            start = time.perf_counter()
            context = CallContext(selection, **facts)
            result = _run(placement, trace, context)
            choices += context.choices
            if result is not trace:
                trace = result.with_provenance(placement.name, time.perf_counter() - start)
                results.append((placement, trace))
        if any(not _ships_here(placement) for placement, _ in results):
            verify(trace)
    except SwitchgearError:
        for placement, each in results:
            _verify(placement, each)
        raise
    return [each for _, each in results], choices


def _ships_here(placement: PassPlacement) -> bool:
    """Check whether a pass is of a shipped part: such a trace is verified under `SWITCHGEAR_VERIFY`, as ours are."""
    module = getattr(placement.run, "__module__", None) or ""  # None for code without a module
    return module.partition(".")[0] in own.PACKAGES


def _run(placement: PassPlacement, trace: Trace, context: PassContext) -> Trace:
    blame, remedy = _blame(placement)
    try:
        result: Any = placement.run(trace, context)
    except SwitchgearError:
        raise
    except Exception as error:
        raise RuleError(f"{blame} raised {type(error).__name__}: {error}; {remedy}") from error
    if not isinstance(result, Trace):
        raise RuleError(f"{blame} returned a {type(result).__name__}, not a Trace; {remedy}")
    if result is not trace and (fault := _changed(trace, result)):
        raise RuleError(f"{blame} changed {fault} of the trace; {remedy}")
    return result


def _verify(placement: PassPlacement, trace: Trace) -> None:
    try:
        verify(trace)
    except InvalidTrace as error:
        blame, remedy = _blame(placement)
        raise RuleError(f"{blame} broke the trace; {remedy}: {error}") from error


def _blame(placement: PassPlacement) -> tuple[str, str]:
    """Return the name of a pass, and advice to continue without the pass."""
    local = placement.owner == OF_THE_CALL
    remedy = "take it out of passes" if local else f"passes=['-{placement.name}'] runs without it"
    return f"pass {placement.name!r} of {placement.owner}", remedy


def _changed(before: Trace, after: Trace) -> str:
    """Return a forbidden change of a pass: of the inputs, or of the layouts of results."""
    if [proxy.name for proxy in before.inputs] != [proxy.name for proxy in after.inputs]:
        return "the inputs"
    if len(before.outputs) != len(after.outputs):
        return "the number of results"
    for index, (old, new) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        if old is None and new is not None:
            return f"result {index}, which is none,"
        layouts = [(proxy.shape, proxy.dtype, proxy.device) for proxy in (old, new) if proxy]
        if len(layouts) == 2 and layouts[0] != layouts[1]:
            return f"shape, dtype or device of result {index}"
    return ""
